"""The problem C = α·op(A)·op(B) + β·C in float32, with its reference in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.errors import BadSize
from toprung.gemm.desc import ELEMENT_BYTES
from toprung.oracle.problem import F32, F64, PANEL, Matrix, Problem, checked_size

TRANSPOSES = ("NN", "NT", "TN", "TT")


@dataclass(frozen=True)
class Gemm(Problem):
    """C = α·op(A)·op(B) + β·C, all row-major: op(A) is M×K, op(B) is K×N, C is M×N.

    Attributes
    ----------
    M, N, K : sizes; 0 is allowed
    alpha, beta : scalars; β = 0 never reads C, α = 0 reads neither A nor B
    lda, ldb, ldc : elements from one row to the next; default tight
    trans : ``NN``, ``NT``, ``TN`` or ``TT``: the first letter is A's, T where it is stored transposed (K×M), the second B's (N×K)
    batch : independent products; each operand's matrices lie one below the other
    type_a, type_b : types of A's and B's elements, of ``ELEMENT_BYTES``; C is float32

    Raises
    ------
    BadSize
        a size that is no integer or negative, a leading dimension shorter than a row, or an unknown ``trans`` or type
    """

    M: int
    N: int
    K: int
    alpha: float = 1.0
    beta: float = 0.0
    lda: int | None = None
    ldb: int | None = None
    ldc: int | None = None
    trans: str = "NN"
    batch: int = 1
    type_a: str = "float32"
    type_b: str = "float32"

    routine = "gemm"

    def __post_init__(self) -> None:
        for name in ("M", "N", "K"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))
        if self.trans not in TRANSPOSES:
            raise BadSize(f"trans is one of {', '.join(TRANSPOSES)}, not {self.trans!r}")
        object.__setattr__(self, "batch", checked_size("batch", self.batch, 1))
        if unknown := {self.type_a, self.type_b} - ELEMENT_BYTES.keys():
            raise BadSize(f"types are {', '.join(ELEMENT_BYTES)}, not {', '.join(sorted(unknown))}")
        widths = (self.K if self.trans[0] == "N" else self.M, self.N if self.trans[1] == "N" else self.K, self.N)
        for name, width in zip(("lda", "ldb", "ldc"), widths, strict=True):
            given = getattr(self, name)
            least = max(width, 1)
            object.__setattr__(self, name, least if given is None else checked_size(name, given, least))
        if max(self.M, self.N, self.K, self.lda or 0, self.ldb or 0, self.ldc or 0) >= 2**31:
            raise BadSize("sizes and leading dimensions must be below 2**31")

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        lda, ldb, ldc = self.lda or 1, self.ldb or 1, self.ldc or 1
        a = (self.M, self.K) if self.trans[0] == "N" else (self.K, self.M)
        b = (self.K, self.N) if self.trans[1] == "N" else (self.N, self.K)
        return (
            Matrix("A", self.batch * a[0], a[1], lda, dtype=self.type_a),
            Matrix("B", self.batch * b[0], b[1], ldb, dtype=self.type_b),
            Matrix("C", self.batch * self.M, self.N, ldc, output=True),
        )

    def stacks(self, operands: Mapping[str, F32]) -> tuple[F32, F32, F32]:
        """op(A), op(B) and C as views of three dimensions, batch first, from the operands as they are stored."""
        a, b, c = (m.reshape(self.batch, m.shape[0] // self.batch, m.shape[1]) for m in map(operands.__getitem__, "ABC"))
        turned = (a if self.trans[0] == "N" else a.transpose(0, 2, 1), b if self.trans[1] == "N" else b.transpose(0, 2, 1))
        return *turned, c

    @property
    def depth(self) -> int:
        return self.K

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.M * self.N * self.K

    @property
    def min_bytes(self) -> int:
        a, b, c = self.M * self.K * ELEMENT_BYTES[self.type_a], self.K * self.N * ELEMENT_BYTES[self.type_b], 4 * self.M * self.N
        return self.batch * (a + b + (2 * c if self.beta else c))

    def reference(self, operands: dict[str, F32], rows: Any = slice(None), cols: Any = slice(None)) -> tuple[F64, F64]:
        left, right, _ = self.stacks(operands)
        old = operands["C"][rows][:, cols]
        result, magnitude = np.zeros(old.shape), np.zeros(old.shape)
        alpha, beta = self._scalars
        index = np.arange(self.batch * self.M)[rows]
        which = index // max(self.M, 1)
        order = np.argsort(which, kind="stable")
        first = np.searchsorted(which[order], np.arange(self.batch + 1))
        with np.errstate(invalid="ignore", over="ignore"):
            for i in np.flatnonzero(np.diff(first)) if alpha else ():
                mine = order[first[i] : first[i + 1]]
                a = left[i][index[mine] % self.M].astype(np.float64)
                b = right[i][:, cols].astype(np.float64)
                result[mine] = alpha * (a @ b)
                magnitude[mine] = abs(alpha) * (np.abs(a) @ np.abs(b))
            if beta:
                c = old.astype(np.float64)
                result += beta * c
                magnitude += abs(beta) * np.abs(c)
        return result, magnitude

    def project(self, operands: dict[str, F32], vector: F64) -> tuple[F64, F64]:
        left, right, old = self.stacks(operands)
        alpha, beta = self._scalars
        expected, bound = np.zeros((self.batch, self.M, 1)), np.zeros((self.batch, self.M, 1))
        ones = np.ones_like(vector)
        with np.errstate(invalid="ignore", over="ignore"):
            for i in range(self.batch):
                if alpha:
                    inner = _times(right[i], vector, ones)
                    value, size = _times(left[i], *inner)
                    expected[i] += alpha * value
                    bound[i] += abs(alpha) * size
                if beta:
                    value, size = _times(old[i], vector, ones)
                    expected[i] += beta * value
                    bound[i] += abs(beta) * size
        return expected.reshape(-1, 1), bound.reshape(-1, 1)

    @property
    def _scalars(self) -> tuple[float, float]:
        """α and β as the kernels get them, rounded to fp32."""
        return float(np.float32(self.alpha)), float(np.float32(self.beta))

    @property
    def is_mixed(self) -> bool:
        """True if A or B has halves."""
        return (self.type_a, self.type_b) != ("float32", "float32")

    def describe(self) -> dict[str, Any]:
        # sizes, strides and scalars; types where an operand has halves
        types = {"type_a": self.type_a, "type_b": self.type_b} if self.is_mixed else {}
        return {
            "routine": self.routine, "M": self.M, "N": self.N, "K": self.K, "alpha": self.alpha, "beta": self.beta,
            "lda": self.lda, "ldb": self.ldb, "ldc": self.ldc, "trans": self.trans, "batch": self.batch,
            **types,
        }  # fmt: skip

    def __str__(self) -> str:
        size = str(self.M) if self.M == self.N == self.K else f"{self.M}×{self.N}×{self.K}"
        types = f" {self.type_a}·{self.type_b}" if self.is_mixed else ""
        return size + (f" {self.trans}" if self.trans != "NN" else "") + types + (f", batch {self.batch}" if self.batch > 1 else "")


def _times(matrix: F32, vector: F64, weights: F64) -> tuple[F64, F64]:
    """``matrix @ vector`` and ``|matrix| @ weights`` in float64."""
    values, sizes = [np.zeros((0, 1))], [np.zeros((0, 1))]
    for i in range(0, matrix.shape[0], PANEL):
        part = matrix[i : i + PANEL].astype(np.float64)
        values.append(part @ vector)
        sizes.append(np.abs(part) @ weights)
    return np.concatenate(values), np.concatenate(sizes)
