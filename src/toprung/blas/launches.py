"""(call, choice) → the launches that compute it, with everything laid out that does not change from run to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.blas import ffma, fp32x, pieces, vendor
from toprung.blas.call import Call, GemmCall, GemvCall
from toprung.blas.choice import FFMA, Choice
from toprung.blas.kernel import Run, kernel, loaded
from toprung.blas.pieces import PIECES
from toprung.blas.short import Skinny, turn
from toprung.blas.slices import FEW_PARTS, sliced
from toprung.blas.tiles import tile_grid
from toprung.errors import LaunchError

SMALLEST = 2.0**-150
"""An α no larger than this is 0 in float32."""

WALKERS = 1 << 20
"""Most work-groups of the kernels whose work-items walk."""

MOST_GROUPS = 2**31 - 1
"""Work-groups along the first dimension of a grid, on every NVIDIA GPU."""


def workspace_bytes(call: Call, choice: Choice, units: int) -> int:
    """Scratch memory of a call: a result for each slice of K; or split terms; or operands laid out and parts of tiles."""
    if choice.kernel == FFMA:
        return ffma.workspace_bytes(call, choice, units)
    if choice.kernel == fp32x.FP32X:
        return fp32x.workspace_bytes(call, choice.slices)
    if choice.kernel == PIECES:
        return pieces.workspace_bytes(call, choice, units)
    slices = choice.slices
    if slices == 1:
        return 0
    return 4 * slices * (call.M * call.N * call.batch if isinstance(call, GemmCall) else call.length)


def count(call: Call, choice: Choice, units: int) -> int:
    """Kernels of a run, α = 0 and K = 0 aside."""
    if choice.kernel == fp32x.FP32X:
        return fp32x.launches(call, choice.slices)
    if choice.kernel == FFMA:
        return ffma.launches(call, choice, units)
    if choice.kernel == PIECES:
        return pieces.launches(call, choice, units)
    return 2 if choice.slices > 1 else 1


def nothing(*_: Any) -> None:
    """An empty result needs no launch."""


def maker(session: Session, call: Call, choice: Choice) -> Callable[[], Run]:
    """What makes ways to start the call, one for each thread that asks."""
    result = call.M * call.N if isinstance(call, GemmCall) else call.length
    depth = call.K if isinstance(call, GemmCall) else call.depth

    def make() -> Run:
        if not result:
            return nothing
        scale = _scale(session, call)
        if not depth:
            return scale
        multiply = PRODUCTS[choice.kernel](session, call, choice)

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
        ) -> None:
            if -SMALLEST <= alpha <= SMALLEST:
                scale(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue)
            else:
                multiply(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue)

        return run

    return make


@dataclass(frozen=True)
class Result:
    """How the result lies: rows × cols, a batch of them; strides in elements, negative ones wrap around."""

    rows: int
    cols: int
    batch: int
    down: int
    on: int
    stride: int

    @staticmethod
    def of(call: Call) -> Result:
        """That of a call."""
        if isinstance(call, GemmCall):
            return Result(call.M, call.N, call.batch, call.ldc, 1, call.stride_c)
        return Result(call.length, 1, 1, call.incy, 1, 0)

    @property
    def elements(self) -> int:
        """Of all matrices."""
        return self.rows * self.cols * self.batch

    @property
    def tight(self) -> bool:
        """Whether elements follow each other without a gap, in the order of rows."""
        return (
            self.on == 1
            and (self.rows == 1 or self.down == self.cols)
            and (self.batch == 1 or self.stride == self.rows * self.cols)
        )


def _uints(*values: int) -> list[np.generic]:
    return [np.uint32(v) for v in values]


def _longs(*values: int) -> list[np.generic]:
    return [np.int64(v) for v in values]


def _walkers(elements: int, work_items: int) -> tuple[int]:
    return (min(-(-elements // work_items), WALKERS),)


def _scale(session: Session, call: Call) -> Run:
    tile, c = kernel("scale").tile_for(session.device), Result.of(call)
    fixed = [*_uints(c.rows, c.cols), *_longs(c.batch, c.down, c.on, c.stride)]
    groups, size = _walkers(c.elements, tile.work_items), (tile.work_items,)
    launch = session.relaunch(loaded(session, "scale", tile, {}), groups, size, "Plf", fixed)

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
    ) -> None:
        launch(queue, c, offset_c, beta)

    return run


def _plain(session: Session, call: Call, choice: Choice) -> Run:
    assert choice.tile is not None
    if isinstance(call, GemvCall):
        a = (1, call.lda) if call.trans else (call.lda, 1)
        sizes, strides = (call.length, 1, call.depth), (1, *a, 0, call.incx, 0, 0, call.incy, 0)
    else:
        a = (1, call.lda) if call.trans_a else (call.lda, 1)
        b = (1, call.ldb) if call.trans_b else (call.ldb, 1)
        sizes = call.M, call.N, call.K
        strides = (call.batch, *a, call.stride_a, *b, call.stride_b, call.ldc, call.stride_c)
    groups, size = _walkers(sizes[0] * sizes[1] * strides[0], choice.tile.work_items), (choice.tile.work_items,)
    fixed = [*_uints(*sizes), *_longs(*strides)]
    return _direct(session, "plain", choice, groups, size, fixed)


def _direct(session: Session, stem: str, choice: Choice, groups: tuple[int, ...], size: tuple[int, ...], fixed: Any) -> Run:
    """One launch with A, B and C as they come."""
    assert choice.tile is not None
    launch = session.relaunch(loaded(session, stem, choice.tile, dict(choice.options)), groups, size, "PlPlPlff", fixed)

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
    ) -> None:
        launch(queue, a, offset_a, b, offset_b, c, offset_c, alpha, beta)

    return run


def _summed(session: Session, call: Call, choice: Choice, main: Run) -> Run:
    """``main`` into scratch memory, a result for each slice, then their sum; the two follow each other in the queue."""
    c, nbytes = Result.of(call), workspace_bytes(call, choice, session.device.compute_units)
    tile = kernel("add").tile_for(session.device)
    if choice.slices <= FEW_PARTS:
        tile = replace(tile, BM=1, BN=tile.work_items)
    width = 1 if isinstance(call, GemvCall) else _fitting(call.N, call.ldc, call.stride_c, call.align_c)
    fixed = [*_uints(c.cols, choice.slices), *_longs(c.rows * c.cols, c.elements, c.down, c.on, c.stride)]
    groups = (-(-c.elements // (tile.DN * width)),)
    switches = {"VC": width, "TIGHT": int(c.tight), "INDEX32": int(c.elements < 2**32)}
    add = session.relaunch(loaded(session, "add", tile, switches), groups, (tile.work_items,), "PlPlff", fixed)
    workspace = session.workspace

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
    ) -> None:
        scratch = workspace(queue, nbytes)
        with scratch.lock:
            parts = scratch.buffer.handle
            main(a, offset_a, b, offset_b, parts, 0, 1.0, 0.0, queue)
            add(queue, parts, 0, c, offset_c, alpha, beta)

    return run


def _fitting(*numbers: int) -> int:
    """The widest access, in floats, that divides all numbers."""
    return next(w for w in (4, 2, 1) if all(n % w == 0 for n in numbers))


def _gemm(session: Session, call: Call, choice: Choice) -> Run:
    assert isinstance(call, GemmCall) and choice.tile is not None
    tile, slices = choice.tile, choice.slices
    tiles_m, tiles_n = tile_grid(call, tile)
    slice_ = sliced(call.K, tile.BK or 1, slices)
    area = call.M * call.N
    ldc, stride_c, stride_slice = (call.N, area, area * call.batch) if slices > 1 else (call.ldc, call.stride_c, 0)
    at_once = MOST_GROUPS // (tiles_m * tiles_n)  # products in a launch
    if not at_once:
        raise LaunchError(f"{call}: {tiles_m * tiles_n:,} work-groups where a launch has {MOST_GROUPS:,} at most")

    def some(count: int) -> Run:
        fixed = [
            *_uints(call.M, call.N, call.K, call.lda, call.ldb, ldc, tiles_m, tiles_n, slice_),
            *_longs(call.stride_a, call.stride_b, stride_c, stride_slice),
        ]
        return _direct(session, "gemm", choice, (tiles_m * tiles_n * count, slices), (tile.work_items,), fixed)

    if call.batch <= at_once:
        main = some(call.batch)
    else:
        whole, rest, last = some(at_once), call.batch // at_once, call.batch % at_once
        end = some(last) if last else None

        def main(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
        ) -> None:
            for i in range(rest + (end is not None)):
                one, n = (end, rest) if end is not None and i == rest else (whole, i)
                n *= at_once
                one(
                    a, offset_a + n * call.stride_a, b, offset_b + n * call.stride_b, c, offset_c + n * stride_c, alpha, beta, queue
                )  # fmt: skip

    return _summed(session, call, choice, main) if slices > 1 else main


def _skinny(session: Session, call: Call, choice: Choice) -> Run:
    """Rows or columns of the large operand; where that is B, the operands change places."""
    assert choice.tile is not None
    s, c, tile, slices = Skinny.of(call), Result.of(call), choice.tile, choice.slices
    blocks = -(-s.length // tile.BM)
    if blocks * c.batch > MOST_GROUPS:
        raise LaunchError(f"{call}: {blocks * c.batch:,} work-groups where a launch has {MOST_GROUPS:,} at most")
    slice_ = sliced(s.depth, turn(tile), slices)
    if slices > 1:
        tight = c.cols if isinstance(call, GemmCall) else 1
        down, on, stride, stride_slice = tight, 1, c.rows * c.cols, c.elements
    else:
        down, on, stride, stride_slice = c.down, c.on, c.stride, 0
    if not s.turned:  # few columns: the small operand's rows are the result's columns
        down, on = on, down
    fixed = [
        *_uints(s.length, s.few, s.depth, blocks, slice_),
        *_longs(s.ld, s.stride_large, s.down, s.on, s.stride_small, down, on, stride, stride_slice),
    ]
    straight = _direct(session, choice.kernel, choice, (blocks * c.batch, slices), (tile.work_items,), fixed)
    if s.turned:

        def main(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
        ) -> None:
            straight(b, offset_b, a, offset_a, c, offset_c, alpha, beta, queue)

    else:
        main = straight
    return _summed(session, call, choice, main) if slices > 1 else main


PRODUCTS: dict[str, Callable[[Session, Call, Choice], Run]] = {
    "plain": _plain, "gemm": _gemm, "rows": _skinny, "columns": _skinny, "cublas": vendor.cublas,
    fp32x.FP32X: fp32x.product, FFMA: ffma.product, PIECES: pieces.product,
}  # fmt: skip
"""What starts a call with each kernel."""
