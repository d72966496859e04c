"""C = α·A·B + β·C in float32: the problem, and the steps that bring a rung's kernel to bear on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.backends.base import Buffer, Launch, Session
from toprung.build import Compiled, shared_kernel
from toprung.errors import BadSize
from toprung.problem import F32, F64, Matrix, Problem, checked_size
from toprung.routines.base import Step
from toprung.tile import Tile

PLAIN = Tile(BM=16, BN=16)
"""Tile of the shared kernels: work-groups every device can run."""


@dataclass(frozen=True)
class Gemm(Problem):
    """C = α·A·B + β·C, all row-major: A is M×K, B is K×N, C is M×N.

    Attributes
    ----------
    M, N, K : sizes; 0 is allowed
    alpha, beta : scalars; β = 0 never reads C, α = 0 reads neither A nor B
    lda, ldb, ldc : elements from one row to the next; default tight

    Raises
    ------
    BadSize
        a size that is no integer or negative, or a leading dimension shorter than a row
    """

    M: int
    N: int
    K: int
    alpha: float = 1.0
    beta: float = 0.0
    lda: int | None = None
    ldb: int | None = None
    ldc: int | None = None

    routine = "gemm"

    def __post_init__(self) -> None:
        for name in ("M", "N", "K"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))
        for name, width in (("lda", self.K), ("ldb", self.N), ("ldc", self.N)):
            given = getattr(self, name)
            least = max(width, 1)
            object.__setattr__(self, name, least if given is None else checked_size(name, given, least))
        if max(self.M, self.N, self.K, self.lda or 0, self.ldb or 0, self.ldc or 0) >= 2**31:
            raise BadSize("sizes and leading dimensions must be below 2**31")

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """A, B and C."""
        lda, ldb, ldc = self.lda or 1, self.ldb or 1, self.ldc or 1
        return (
            Matrix("A", self.M, self.K, lda),
            Matrix("B", self.K, self.N, ldb),
            Matrix("C", self.M, self.N, ldc, output=True),
        )

    @property
    def depth(self) -> int:
        """K."""
        return self.K

    @property
    def flops(self) -> int:
        """2·M·N·K."""
        return 2 * self.M * self.N * self.K

    @property
    def min_bytes(self) -> int:
        """A and B read once, C written once, and read once where β ≠ 0."""
        c = self.M * self.N
        return 4 * (self.M * self.K + self.K * self.N + (2 * c if self.beta else c))

    def reference(self, operands: dict[str, F32], rows: Any = slice(None), cols: Any = slice(None)) -> tuple[F64, F64]:
        """α·A·B + β·C in float64, and |α|·|A|·|B| + |β|·|C|, for the given rows and columns of C."""
        shape = operands["C"][rows][:, cols].shape
        result, magnitude = np.zeros(shape), np.zeros(shape)
        # α and β as the kernels get them, rounded to fp32
        alpha, beta = float(np.float32(self.alpha)), float(np.float32(self.beta))
        with np.errstate(invalid="ignore", over="ignore"):
            if alpha:
                a = operands["A"][rows].astype(np.float64)
                b = operands["B"][:, cols].astype(np.float64)
                result += alpha * (a @ b)
                magnitude += abs(alpha) * (np.abs(a) @ np.abs(b))
            if beta:
                c = operands["C"][rows][:, cols].astype(np.float64)
                result += beta * c
                magnitude += abs(beta) * np.abs(c)
        return result, magnitude

    def describe(self) -> dict[str, Any]:
        """Sizes, strides and scalars."""
        return {
            "routine": self.routine, "M": self.M, "N": self.N, "K": self.K, "alpha": self.alpha, "beta": self.beta,
            "lda": self.lda, "ldb": self.ldb, "ldc": self.ldc,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.M}×{self.N}×{self.K}"


def from_size(size: tuple[int, ...]) -> Gemm:
    """The problem a user means by ``512`` (square) or ``35x79x19`` (M×N×K).

    Raises
    ------
    BadSize
        not one or three numbers, or one that is not positive
    """
    if len(size) not in (1, 3):
        raise BadSize(f"a size is N or MxNxK, not {'x'.join(map(str, size))}")
    M, N, K = (checked_size(n, v, least=1) for n, v in zip("MNK", size * 3 if len(size) == 1 else size, strict=True))
    return Gemm(M, N, K)


def steps(compiled: Compiled, problem: Gemm, buffers: Mapping[str, Buffer], session: Session) -> list[Step]:
    """The launches that compute ``problem`` with a rung, in order.

    Operands that the rung wants whole or transposed go through scratch memory of the session's; operands that already are
    what the rung wants do not. An empty C needs no launch; K = 0 or α = 0 leaves C = β·C.
    """
    maker = _Maker(session)
    a, b, c = (_Placed(buffers[m.name], m.rows, m.cols, m.ld) for m in problem.matrices)
    if problem.M == 0 or problem.N == 0:
        return []
    if problem.K == 0 or np.float32(problem.alpha) == 0:
        beta = np.float32(problem.beta)
        return [
            Step("scale", maker.plain("scale", c.rows, c.cols, np.int32(c.rows), np.int32(c.cols), beta, c.buffer, np.int32(c.ld)))
        ]

    rung, tile = compiled.rung, compiled.tile
    whole = rung.whole_operands(compiled.options)
    bm, bn, bk = tile.BM, tile.BN, tile.BK or 1
    before: list[Step] = []
    if "A" in rung.transposed:
        at = maker.scratch(_up(a.cols, bk), _up(a.rows, bm))
        before.append(maker.copy("transpose", a, at))
        a = at
    elif "A" in whole and not a.is_whole(bm, bk, tile.widest):
        a = maker.padded(a, bm, bk, before)
    if "B" in whole and not b.is_whole(bk, bn, tile.widest):
        b = maker.padded(b, bk, bn, before)
    target = c
    if "C" in whole and not c.is_whole(bm, bn, tile.widest):
        target = maker.scratch(_up(c.rows, bm), _up(c.cols, bn))
        if problem.beta:
            before.append(maker.copy("pad", c, target))
    # a rung that gets whole tiles computes all of them; one that does not minds the true edges
    M, N = (target.rows, target.cols) if "C" in whole else (problem.M, problem.N)
    K = _up(problem.K, bk) if "B" in whole else problem.K
    main = session.bind(
        compiled.kernel,
        (_up(N, bn) // bn, _up(M, bm) // bm),
        (tile.DN, tile.DM),
        (
            *map(np.int32, (M, N, K)), np.float32(problem.alpha), a.buffer, np.int32(a.ld), b.buffer, np.int32(b.ld),
            np.float32(problem.beta), target.buffer, np.int32(target.ld),
        ),
        compiled.options,
    )  # fmt: skip
    after = [maker.copy("pad", target, c, name="crop")] if target is not c else []
    return [*before, Step(rung.name, main, helper=False), *after]


@dataclass(frozen=True)
class _Placed:
    """A matrix in device memory."""

    buffer: Buffer
    rows: int
    cols: int
    ld: int

    def is_whole(self, row_tile: int, col_tile: int, width: int) -> bool:
        return self.rows % row_tile == 0 and self.cols % col_tile == 0 and self.ld % width == 0


class _Maker:
    """Makes scratch matrices and launches of the shared kernels."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def scratch(self, rows: int, cols: int) -> _Placed:
        return _Placed(self.session.allocate(4 * rows * cols), rows, cols, cols)

    def padded(self, m: _Placed, row_tile: int, col_tile: int, before: list[Step]) -> _Placed:
        out = self.scratch(_up(m.rows, row_tile), _up(m.cols, col_tile))
        before.append(self.copy("pad", m, out))
        return out

    def copy(self, kernel: str, src: _Placed, dst: _Placed, name: str = "") -> Step:
        args = (
            np.int32(src.rows), np.int32(src.cols), src.buffer, np.int32(src.ld),
            np.int32(dst.rows), np.int32(dst.cols), dst.buffer, np.int32(dst.ld),
        )  # fmt: skip
        return Step(name or kernel, self.plain(kernel, dst.rows, dst.cols, *args))

    def plain(self, kernel: str, rows: int, cols: int, *args: Buffer | np.generic) -> Launch:
        groups = (_up(cols, PLAIN.BN) // PLAIN.BN, _up(rows, PLAIN.BM) // PLAIN.BM)
        return self.session.bind(shared_kernel(kernel, PLAIN, self.session), groups, (PLAIN.BN, PLAIN.BM), args)


def _up(value: int, multiple: int) -> int:
    """``value`` rounded up to a multiple."""
    return -(-value // multiple) * multiple
