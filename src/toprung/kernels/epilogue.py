"""Epilogues of kernels in CUDA C++ that include ``include/epilogue.cuh``: their macros and arguments."""

from __future__ import annotations

import numpy as np

from toprung.backends import plan
from toprung.backends.plan import Address, Argument
from toprung.gemm.epilogue import ACTIVATIONS, ADDEND, Epilogue

EVERY = frozenset({ADDEND, *ACTIVATIONS})
"""Abilities of such a kernel: all epilogues there are."""


def defines(epilogue: Epilogue | None) -> dict[str, int]:
    """Return the macros of a kernel; none without an epilogue, so that its source is the one that was tuned."""
    if epilogue is None:
        return {}
    one_row = (epilogue.addend, epilogue.down, epilogue.on, epilogue.stride) == (True, 0, 1, 0)
    return {"EPILOGUE": 2 if one_row else 1, "ACTIVATION": ACTIVATIONS.get(epilogue.activation, 0)}


def arguments(epilogue: Epilogue | None, plus: int = 0, slot: int = plan.ADDEND) -> tuple[Argument, ...]:
    """Return the arguments behind β: D's address, ``plus`` bytes on, and its strides; a kernel without an epilogue takes none."""
    if epilogue is None:
        return ()
    return Address(slot, plus), *map(np.int64, (epilogue.down, epilogue.on, epilogue.stride))
