"""C = α·op(A)·op(B) + β·C: the launches that bring a rung's kernel to bear on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.backends.base import Buffer, Launch, Session
from toprung.errors import BadSize, Unsupported
from toprung.gemm.desc import described
from toprung.kernels.base import Launches
from toprung.kernels.build import Compiled
from toprung.lab.routines.base import Step, each_launch, shared_kernel
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import checked_size
from toprung.tile import Tile

PLAIN = Tile(BM=16, BN=16)
"""Tile of the shared kernels: work-groups every device can run."""


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
class KernelCall:
    """Product that a rung's kernel is launched for, after padding: ``M``, ``N`` and ``K`` are its arguments."""

    compiled: Compiled[Rung]
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


def a_group_a_block(call: KernelCall, session: Session) -> list[Step]:
    """One launch, one work-group for each block of C."""
    compiled, tile = call.compiled, call.compiled.tile
    groups = (round_up(call.N, tile.BN) // tile.BN, round_up(call.M, tile.BM) // tile.BM)
    main = session.bind(compiled.kernel, groups, (tile.DN, tile.DM), call.args, compiled.options)
    return [Step(compiled.record.name, main, helper=False)]


def steps(
    compiled: Compiled[Rung],
    problem: Gemm,
    buffers: Mapping[str, Buffer],
    session: Session,
    multiply: Callable[[KernelCall, Session], list[Step]] = a_group_a_block,
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
        raise Unsupported(f"{compiled.record} computes A·B, one product at a time: no transposes, no batches")
    if compiled.options.get("INDEX32") and max(m.extent for m in problem.matrices) >= 2**31:
        raise Unsupported(f"{compiled.record} with INDEX32=1 reaches 2**31 elements, and {problem} has more; use INDEX32=0")
    maker = Maker(session)
    a, b, c = (Placed(buffers[m.name], m.rows, m.cols, m.ld) for m in problem.matrices)
    if (few := without_product(problem, c, maker)) is not None:
        return few
    rung, tile = compiled.record, compiled.tile
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
    main = multiply(KernelCall(compiled, problem, M, N, K, a, b, target), session)
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


def of_library(make: Callable[[Compiled[Rung], Any, Any], Launches]) -> Callable[..., list[Step]]:
    """Return a ``steps`` function for rungs that run launches of the library.

    ``make`` returns the launches for rung, product and session. The steps raise Unsupported for a batch.
    """

    def steps(compiled: Compiled[Rung], problem: Gemm, buffers: Mapping[str, Buffer], session: Session) -> list[Step]:
        if problem.batch != 1:
            raise Unsupported(f"{compiled.record} computes one product at a time: no batches")
        out = problem.output
        few = without_product(problem, Placed(buffers["C"], out.rows, out.cols, out.ld), Maker(session))
        if few is not None:
            return few
        return each_launch(make(compiled, described(problem.describe()), session), compiled.record.name, problem, buffers)

    return steps


@dataclass(frozen=True)
class Placed:
    """A matrix in device memory."""

    buffer: Buffer
    rows: int
    cols: int
    ld: int

    def is_whole(self, row_tile: int, col_tile: int, width: int) -> bool:
        """Return True if it consists of whole tiles with aligned rows."""
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
