"""Layouts of arrays: shape, strides and alignment, in elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Layout(NamedTuple):
    """Shape, strides and alignment of an array, as kernels see it.

    Attributes
    ----------
    shape : the batch's dimensions, then rows and columns
    strides : number of elements from one to the next along each dimension; any sign
    align : floats to which the first element's address is aligned: 1, 2 or 4
    dtype : type of the elements; only float32 is ever copied
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int
    dtype: str = "float32"

    @property
    def transposed(self) -> Layout:
        """Layout with rows and columns exchanged."""
        shape, strides = ((*numbers[:-2], numbers[-1], numbers[-2]) for numbers in (self.shape, self.strides))
        return Layout(shape, strides, self.align, self.dtype)


def tight(shape: Sequence[int], fortran: bool = False) -> tuple[int, ...]:
    """Return the strides, in elements, of an array without gaps, row-major or column-major."""
    strides, step = list[int](), 1
    for n in shape if fortran else reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(strides if fortran else reversed(strides))


def dense(shape: Sequence[int], strides: Sequence[int], fortran: bool = False) -> bool:
    """Return True if an array has no gaps, row-major or column-major; strides along dimensions of one do not matter."""
    return 0 in shape or all(n == 1 or s == t for n, s, t in zip(shape, strides, tight(shape, fortran), strict=True))


def aligned(address: int) -> int:
    """Return the floats to which an address in bytes is aligned: 4, 2 or 1."""
    return 4 if address % 16 == 0 else 2 if address % 8 == 0 else 1
