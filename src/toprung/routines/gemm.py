"""C = α·op(A)·op(B) + β·C in float32: the problem, and the steps that bring a rung's kernel to bear on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.backends.base import Buffer, Launch, Session
from toprung.build import Compiled, shared_kernel
from toprung.errors import BadSize, Unsupported
from toprung.problem import F32, F64, PANEL, Matrix, Problem, checked_size
from toprung.routines.base import Step
from toprung.tile import Tile

TRANSPOSES = ("NN", "NT", "TN", "TT")

PLAIN = Tile(BM=16, BN=16)
"""Tile of the shared kernels: work-groups every device can run."""


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

    Raises
    ------
    BadSize
        a size that is no integer or negative, a leading dimension shorter than a row, or an unknown ``trans``
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

    routine = "gemm"

    def __post_init__(self) -> None:
        for name in ("M", "N", "K"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))
        if self.trans not in TRANSPOSES:
            raise BadSize(f"trans is one of {', '.join(TRANSPOSES)}, not {self.trans!r}")
        object.__setattr__(self, "batch", checked_size("batch", self.batch, 1))
        widths = (self.K if self.trans[0] == "N" else self.M, self.N if self.trans[1] == "N" else self.K, self.N)
        for name, width in zip(("lda", "ldb", "ldc"), widths, strict=True):
            given = getattr(self, name)
            least = max(width, 1)
            object.__setattr__(self, name, least if given is None else checked_size(name, given, least))
        if max(self.M, self.N, self.K, self.lda or 0, self.ldb or 0, self.ldc or 0) >= 2**31:
            raise BadSize("sizes and leading dimensions must be below 2**31")

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """A, B and C."""
        lda, ldb, ldc = self.lda or 1, self.ldb or 1, self.ldc or 1
        a = (self.M, self.K) if self.trans[0] == "N" else (self.K, self.M)
        b = (self.K, self.N) if self.trans[1] == "N" else (self.N, self.K)
        return (
            Matrix("A", self.batch * a[0], a[1], lda),
            Matrix("B", self.batch * b[0], b[1], ldb),
            Matrix("C", self.batch * self.M, self.N, ldc, output=True),
        )

    def stacks(self, operands: Mapping[str, F32]) -> tuple[F32, F32, F32]:
        """op(A), op(B) and C as views of three dimensions, batch first, from the operands as they are stored."""
        a, b, c = (m.reshape(self.batch, m.shape[0] // self.batch, m.shape[1]) for m in map(operands.__getitem__, "ABC"))
        turned = (a if self.trans[0] == "N" else a.transpose(0, 2, 1), b if self.trans[1] == "N" else b.transpose(0, 2, 1))
        return *turned, c

    @property
    def depth(self) -> int:
        """K."""
        return self.K

    @property
    def flops(self) -> int:
        """2·M·N·K, for each product of the batch."""
        return 2 * self.batch * self.M * self.N * self.K

    @property
    def min_bytes(self) -> int:
        """A and B read once, C written once, and read once where β ≠ 0."""
        c = self.M * self.N
        return 4 * self.batch * (self.M * self.K + self.K * self.N + (2 * c if self.beta else c))

    def reference(self, operands: dict[str, F32], rows: Any = slice(None), cols: Any = slice(None)) -> tuple[F64, F64]:
        """α·op(A)·op(B) + β·C in float64, and |α|·|A|·|B| + |β|·|C|, for the given rows and columns of C."""
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
        """``reference`` times a vector of ±1 and the magnitude's row sums, by products of matrices with vectors."""
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

    def describe(self) -> dict[str, Any]:
        """Sizes, strides and scalars."""
        return {
            "routine": self.routine, "M": self.M, "N": self.N, "K": self.K, "alpha": self.alpha, "beta": self.beta,
            "lda": self.lda, "ldb": self.ldb, "ldc": self.ldc, "trans": self.trans, "batch": self.batch,
        }  # fmt: skip

    def __str__(self) -> str:
        size = str(self.M) if self.M == self.N == self.K else f"{self.M}×{self.N}×{self.K}"
        return size + (f" {self.trans}" if self.trans != "NN" else "") + (f", batch {self.batch}" if self.batch > 1 else "")


def _times(matrix: F32, vector: F64, weights: F64) -> tuple[F64, F64]:
    """``matrix @ vector`` and ``|matrix| @ weights`` in float64."""
    values, sizes = [np.zeros((0, 1))], [np.zeros((0, 1))]
    for i in range(0, matrix.shape[0], PANEL):
        part = matrix[i : i + PANEL].astype(np.float64)
        values.append(part @ vector)
        sizes.append(np.abs(part) @ weights)
    return np.concatenate(values), np.concatenate(sizes)


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


@dataclass(frozen=True)
class Call:
    """What a rung's kernel is to compute once its operands lie as it wants them: ``M``, ``N`` and ``K`` as it is told them."""

    compiled: Compiled
    problem: Gemm
    M: int
    N: int
    K: int
    a: Placed
    b: Placed
    c: Placed

    @property
    def args(self) -> tuple[Buffer | np.generic, ...]:
        """The arguments that every rung's kernel has."""
        return (
            *map(np.int32, (self.M, self.N, self.K)), np.float32(self.problem.alpha), self.a.buffer, np.int32(self.a.ld),
            self.b.buffer, np.int32(self.b.ld), np.float32(self.problem.beta), self.c.buffer, np.int32(self.c.ld),
        )  # fmt: skip


def a_group_a_block(call: Call, session: Session) -> list[Step]:
    """One launch, one work-group for each block of C."""
    compiled, tile = call.compiled, call.compiled.tile
    groups = (round_up(call.N, tile.BN) // tile.BN, round_up(call.M, tile.BM) // tile.BM)
    main = session.bind(compiled.kernel, groups, (tile.DN, tile.DM), call.args, compiled.options)
    return [Step(compiled.rung.name, main, helper=False)]


def steps(
    compiled: Compiled,
    problem: Gemm,
    buffers: Mapping[str, Buffer],
    session: Session,
    multiply: Callable[[Call, Session], list[Step]] = a_group_a_block,
) -> list[Step]:
    """The launches that compute ``problem`` with a rung, in order; ``multiply`` makes those of the product itself.

    Operands that the rung wants whole or transposed go through scratch memory of the session's; operands that already are
    what the rung wants do not. An empty C needs no launch; K = 0 or α = 0 leaves C = β·C.

    Raises
    ------
    Unsupported
        transposes and batches: the ladders' kernels compute A·B; with 32-bit offsets, matrices they do not reach across
    """
    if problem.trans != "NN" or problem.batch != 1:
        raise Unsupported(f"{compiled.rung} computes A·B, one product at a time: no transposes, no batches")
    if compiled.options.get("INDEX32") and max(m.extent for m in problem.matrices) >= 2**31:
        raise Unsupported(f"{compiled.rung} with INDEX32=1 reaches 2**31 elements, and {problem} has more; use INDEX32=0")
    maker = Maker(session)
    a, b, c = (Placed(buffers[m.name], m.rows, m.cols, m.ld) for m in problem.matrices)
    if (few := without_product(problem, c, maker)) is not None:
        return few
    rung, tile = compiled.rung, compiled.tile
    whole = rung.whole_operands(compiled.options)
    bm, bn, bk = tile.BM, tile.BN, tile.BK or 1
    before: list[Step] = []
    if "A" in rung.transposed:
        at = maker.scratch(round_up(a.cols, bk), round_up(a.rows, bm))
        before.append(maker.copy("transpose", a, at))
        a = at
    elif "A" in whole and not a.is_whole(bm, bk, tile.widest):
        a = maker.padded(a, bm, bk, before)
    if "B" in whole and not b.is_whole(bk, bn, tile.widest):
        b = maker.padded(b, bk, bn, before)
    target = c
    if "C" in whole and not c.is_whole(bm, bn, tile.widest):
        target = maker.scratch(round_up(c.rows, bm), round_up(c.cols, bn))
        if problem.beta:
            before.append(maker.copy("pad", c, target))
    # a rung that gets whole tiles computes all of them; one that does not minds the true edges
    M, N = (target.rows, target.cols) if "C" in whole else (problem.M, problem.N)
    K = round_up(problem.K, bk) if "B" in whole else problem.K
    main = multiply(Call(compiled, problem, M, N, K, a, b, target), session)
    after = [maker.copy("pad", target, c, name="crop")] if target is not c else []
    return [*before, *main, *after]


def without_product(problem: Gemm, c: Placed, maker: Maker) -> list[Step] | None:
    """The launches of a problem that needs no product: none for an empty C, C = β·C for K = 0 or α = 0. None for all others."""
    if problem.M == 0 or problem.N == 0:
        return []
    if problem.K == 0 or np.float32(problem.alpha) == 0:
        args = (np.int32(c.rows), np.int32(c.cols), np.float32(problem.beta), c.buffer, np.int32(c.ld))
        return [Step("scale", maker.plain("scale", c.rows, c.cols, *args))]
    return None


@dataclass(frozen=True)
class Placed:
    """A matrix in device memory."""

    buffer: Buffer
    rows: int
    cols: int
    ld: int

    def is_whole(self, row_tile: int, col_tile: int, width: int) -> bool:
        """Whether it consists of whole tiles with aligned rows."""
        return self.rows % row_tile == 0 and self.cols % col_tile == 0 and self.ld % width == 0


class Maker:
    """Makes scratch matrices and launches of the shared kernels."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def scratch(self, rows: int, cols: int) -> Placed:
        """A new matrix, uninitialised."""
        return Placed(self.session.allocate(4 * rows * cols), rows, cols, cols)

    def padded(self, m: Placed, row_tile: int, col_tile: int, before: list[Step]) -> Placed:
        """A copy as whole tiles; the step that makes it is added to ``before``."""
        out = self.scratch(round_up(m.rows, row_tile), round_up(m.cols, col_tile))
        before.append(self.copy("pad", m, out))
        return out

    def copy(self, kernel: str, src: Placed, dst: Placed, name: str = "") -> Step:
        """One matrix into another with a shared kernel."""
        args = (
            np.int32(src.rows), np.int32(src.cols), src.buffer, np.int32(src.ld),
            np.int32(dst.rows), np.int32(dst.cols), dst.buffer, np.int32(dst.ld),
        )  # fmt: skip
        return Step(name or kernel, self.plain(kernel, dst.rows, dst.cols, *args))

    def plain(self, kernel: str, rows: int, cols: int, *args: Buffer | np.generic) -> Launch:
        """A shared kernel with one work-item an element."""
        groups = (round_up(cols, PLAIN.BN) // PLAIN.BN, round_up(rows, PLAIN.BM) // PLAIN.BM)
        return self.session.bind(shared_kernel(kernel, PLAIN, self.session), groups, (PLAIN.BN, PLAIN.BM), args)


def round_up(value: int, multiple: int) -> int:
    """``value`` rounded up to a multiple."""
    return -(-value // multiple) * multiple
