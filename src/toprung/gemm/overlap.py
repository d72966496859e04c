"""Exact test for an output that shares memory with an input: strides are considered, not only where arrays begin and end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.errors import Overlap

WORK = 100_000
"""Limit, in steps or elements, of the search for an overlap of interleaved arrays; past it they count as overlapping (NP-hard)."""


class _At:
    """An object with the array interface of memory that somebody else owns."""

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, writable: bool, size: int = 4
    ) -> None:  # fmt: skip
        self.owner = owner
        self.__array_interface__: dict[str, Any] = {
            "shape": shape, "strides": tuple(size * s for s in strides), "typestr": f"<f{size}", "data": (address, not writable),
            "version": 3,
        }  # fmt: skip


def array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, writable: bool) -> NDArray[np.float32]:
    """Return a NumPy array over memory that ``owner`` keeps; the address in bytes, strides in elements."""
    return np.asarray(_At(address, shape, strides, owner, writable))


def span(address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int = 4) -> tuple[int, int]:
    """Return the addresses, in bytes, of an array's first byte and of the first one behind it; equal if it is empty.

    ``size``: bytes of an element.
    """
    if 0 in shape:
        return address, address
    low = high = 0
    for n, stride in zip(shape, strides, strict=True):
        low, high = low + min((n - 1) * stride, 0), high + max((n - 1) * stride, 0)
    return address + size * low, address + size * (high + 1)


At = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Address in bytes, shape, and strides in elements."""


def share(one: At, other: At, size: int = 4) -> bool:
    """Return True if two arrays share a byte, by numpy.shares_memory; ``size``: bytes of an element of the other, 4 of the one."""
    (low, high), (begin, end) = span(*one), span(*other, size)
    if high <= begin or end <= low:
        return False
    base = min(low, begin) - 4096  # small addresses stay positive, and none is ever read
    first, second = (
        np.asarray(_At(address - base, shape, strides, None, False, each))
        for (address, shape, strides), each in ((one, 4), (other, size))
    )
    try:
        return bool(np.shares_memory(first, second, max_work=WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def folded(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return True if an array has two indices for one element. Strides in elements."""
    reach = 0
    for step, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if step <= reach:
            break
        reach += step * (n - 1)
    else:
        return False
    if math.prod(shape) > WORK or 0 in shape:
        return 0 not in shape
    places = np.zeros(shape, np.int64)
    for dim, (n, step) in enumerate(zip(shape, strides, strict=True)):
        places += (step * np.arange(n)).reshape([-1 if i == dim else 1 for i in range(len(shape))])
    return np.unique(places).size != math.prod(shape)


def refuse(name: str, input_name: str) -> Overlap:
    """Return the error for an output that overlaps an input."""
    return Overlap(
        f"{name} shares memory with {input_name}, which would be overwritten while it is read: pass another array as {name}, "
        f"or a copy as {input_name}"
    )
