"""The problem y = α·op(A)·x + β·y in float32, with its reference in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.errors import BadSize
from toprung.oracle.problem import F32, F64, PANEL, Matrix, Problem, checked_size


@dataclass(frozen=True)
class Gemv(Problem):
    """y = α·op(A)·x + β·y, A row-major M×N; op(A) is A or, with ``trans="T"``, its transpose.

    Attributes
    ----------
    M, N : sizes of A as it is stored; 0 is allowed
    alpha, beta : scalars; β = 0 never reads y, α = 0 reads neither A nor x
    lda : elements from one row of A to the next; default tight
    incx, incy : elements from one of x or y to the next
    trans : ``N`` or ``T``

    Raises
    ------
    BadSize
        a size that is no integer or negative, a leading dimension shorter than a row, an increment below 1, an unknown ``trans``
    """

    M: int
    N: int
    alpha: float = 1.0
    beta: float = 0.0
    lda: int | None = None
    incx: int = 1
    incy: int = 1
    trans: str = "N"

    routine = "gemv"
    measured_in = "GB/s"

    def __post_init__(self) -> None:
        for name, least in (("M", 0), ("N", 0), ("incx", 1), ("incy", 1)):
            object.__setattr__(self, name, checked_size(name, getattr(self, name), least))
        least = max(self.N, 1)
        object.__setattr__(self, "lda", least if self.lda is None else checked_size("lda", self.lda, least))
        if self.trans not in ("N", "T"):
            raise BadSize(f"trans is N or T, not {self.trans!r}")
        if max(self.M, self.N, self.lda or 0, self.incx, self.incy) >= 2**31:
            raise BadSize("sizes, leading dimensions and increments must be below 2**31")

    @property
    def length(self) -> int:
        """Elements of y."""
        return self.M if self.trans == "N" else self.N

    @property
    def depth(self) -> int:
        # elements of x: terms in the sum that makes one element of y
        return self.N if self.trans == "N" else self.M

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return (
            Matrix("A", self.M, self.N, self.lda or 1),
            Matrix("x", self.depth, 1, self.incx),
            Matrix("y", self.length, 1, self.incy, output=True),
        )

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N

    @property
    def min_bytes(self) -> int:
        return 4 * (self.M * self.N + self.depth + (2 if self.beta else 1) * self.length)

    def reference(self, operands: dict[str, F32], rows: Any = slice(None), cols: Any = slice(None)) -> tuple[F64, F64]:
        # α·op(A)·x + β·y in float64, and |α|·|op(A)|·|x| + |β|·|y|, for the given elements of y: a panel of A at a time
        a = operands["A"] if self.trans == "N" else operands["A"].T
        a, x, old = a[rows], operands["x"].astype(np.float64), operands["y"][rows].astype(np.float64)
        result, magnitude = np.zeros(old.shape), np.zeros(old.shape)
        alpha, beta = float(np.float32(self.alpha)), float(np.float32(self.beta))  # as the kernels get them
        with np.errstate(invalid="ignore", over="ignore"):
            for i in range(0, a.shape[0], PANEL) if alpha else ():
                part = a[i : i + PANEL].astype(np.float64)
                result[i : i + PANEL] = alpha * (part @ x)
                magnitude[i : i + PANEL] = abs(alpha) * (np.abs(part) @ np.abs(x))
            if beta:
                result += beta * old
                magnitude += abs(beta) * np.abs(old)
        return result[:, cols], magnitude[:, cols]

    def describe(self) -> dict[str, Any]:
        return {
            "routine": self.routine, "M": self.M, "N": self.N, "alpha": self.alpha, "beta": self.beta, "lda": self.lda,
            "incx": self.incx, "incy": self.incy, "trans": self.trans, "measured_in": self.measured_in,
        }  # fmt: skip

    def __str__(self) -> str:
        size = str(self.M) if self.M == self.N else f"{self.M}×{self.N}"
        return size + (" T" if self.trans == "T" else "")
