"""Problems: sizes, leading dimensions, scalars. One descriptor feeds tests, benchmarks, the tuner and the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung import forks
from toprung.errors import BadSize
from toprung.gemm.desc import ELEMENT_BYTES, Desc, described

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-24
"""u of fp32."""

PANEL = 1024
"""Rows that are widened to float64 at a time: the whole of a large matrix would not fit."""


@dataclass(frozen=True)
class Matrix:
    """Layout of one operand: ``rows`` rows of ``cols`` elements, ``ld`` elements apart, row-major.

    A vector is a matrix of one column; its increment is ``ld``. Halves are float32 on the host, rounded to what ``dtype`` holds.
    """

    name: str
    rows: int
    cols: int
    ld: int
    output: bool = False
    dtype: str = "float32"

    @property
    def extent(self) -> int:
        """Elements from the first to the last, the gaps between rows counted."""
        return (self.rows - 1) * self.ld + self.cols if self.rows and self.cols else 0

    @property
    def nbytes(self) -> int:
        """Bytes of ``extent`` elements in a device's memory."""
        return ELEMENT_BYTES[self.dtype] * self.extent


class Problem(ABC):
    """A routine with its sizes and scalars."""

    routine: str
    measured_in: str = "GFLOP/s"
    """Quantity to compare: arithmetic, or bytes moved where memory is the limit."""

    @property
    @abstractmethod
    def matrices(self) -> tuple[Matrix, ...]:
        """The operands in the order of the kernels' arguments; exactly one is the output."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """Terms in the sum that makes one element of the output (K)."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations by the field's convention (2·M·N·K for a product)."""

    @property
    @abstractmethod
    def min_bytes(self) -> int:
        """Bytes that must cross the memory interface at least: each input read once, the output written once."""

    @abstractmethod
    def reference(self, operands: dict[str, F32], rows: Any = slice(None), cols: Any = slice(None)) -> tuple[F64, F64]:
        """The result in float64, and the sum of the absolute values of its terms, for a part of the output."""

    def project(self, operands: dict[str, F32], vector: F64) -> tuple[F64, F64]:
        """The result times a vector of ±1, and by how much a grade ratio of 1/u may move it: a panel of the result at a time."""
        rows = self.output.rows
        expected, bound = np.empty((rows, 1)), np.empty((rows, 1))
        for i in range(0, rows, PANEL):
            part, magnitude = self.reference(operands, slice(i, i + PANEL))
            expected[i : i + PANEL], bound[i : i + PANEL] = part @ vector, magnitude.sum(axis=1, keepdims=True)
        return expected, bound

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything needed to make this problem again, as JSON."""

    @forks.cached_property
    def desc(self) -> Desc:
        """Descriptor of the product in memory of toprung's own sessions; matrices of a batch lie one below the other.

        Raises
        ------
        Unsupported
            the problem belongs to another routine than gemm and gemv
        """
        return described(self.describe())

    @property
    def output(self) -> Matrix:
        """The operand that is written."""
        return next(m for m in self.matrices if m.output)


def checked_size(name: str, value: object, least: int = 0) -> int:
    """``value`` as an int, or BadSize naming what was given."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise BadSize(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise BadSize(f"{name} must be at least {least}, not {value}")
    return int(value)
