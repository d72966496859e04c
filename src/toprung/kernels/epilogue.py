"""Epilogues of kernels in CUDA C++ that include ``include/epilogue.cuh``: their macros and arguments."""

from __future__ import annotations

import numpy as np

from toprung.gemm.epilogue import ADDEND, Epilogue
from toprung.kernels.helpers import ACTIVATIONS

EVERY = frozenset({ADDEND, *ACTIVATIONS})
"""Abilities of such a kernel: all epilogues there are."""


def defines(epilogue: Epilogue | None) -> dict[str, int]:
    """Return the macros of a kernel; none without an epilogue, so that its source is the one that was tuned."""
    if epilogue is None:
        return {}
    one_row = (epilogue.addend, epilogue.down, epilogue.on, epilogue.stride) == (True, 0, 1, 0)
    return {"EPILOGUE": 2 if one_row else 1, "ACTIVATION": ACTIVATIONS.get(epilogue.activation, 0)}


def kinds(epilogue: Epilogue | None) -> str:
    """Return the kinds of arguments that change from call to call: D's address, behind β."""
    return "" if epilogue is None else "P"


def strides(epilogue: Epilogue | None) -> tuple[np.generic, ...]:
    """Return D's strides, the first of the arguments that stay."""
    return () if epilogue is None else tuple(map(np.int64, (epilogue.down, epilogue.on, epilogue.stride)))


def addresses(epilogue: Epilogue | None, addend: int) -> tuple[int, ...]:
    """Return the argument of ``kinds``; a kernel without an epilogue takes none."""
    return () if epilogue is None else (addend,)
