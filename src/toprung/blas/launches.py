"""(call, choice) → the launches that compute it, with everything laid out that does not change from run to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.blas.call import Call, GemmCall, GemvCall
from toprung.blas.choose import Choice
from toprung.blas.kernel import Run, kernel, loaded

SMALLEST = 2.0**-150
"""An α no larger than this is 0 in float32."""

WALKERS = 1 << 20
"""Most work-groups of the kernels whose work-items walk."""


def workspace_bytes(call: Call, choice: Choice) -> int:
    """Scratch memory of a call."""
    return 0


def nothing(*_: Any) -> None:
    """An empty result needs no launch."""


def maker(session: Session, call: Call, choice: Choice) -> Callable[[], Run]:
    """What makes ways to start the call, one for each thread that asks."""
    empty = not call.M * call.N if isinstance(call, GemmCall) else not call.length
    if empty:
        return lambda: nothing
    if isinstance(call, GemmCall):
        depth, product = call.K, _product
    else:
        depth, product = call.depth, _product

    def make() -> Run:
        scale = _scale(session, call)
        if not depth:
            return scale
        multiply = product(session, call, choice)

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
        ) -> None:
            if -SMALLEST <= alpha <= SMALLEST:
                scale(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue)
            else:
                multiply(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue)

        return run

    return make


def _as_gemm(call: Call) -> tuple[int, ...]:
    """M, N, K, batch and the strides of each operand along its two dimensions and the batch; negative ones wrap around."""
    if isinstance(call, GemvCall):
        a = (1, call.lda) if call.trans else (call.lda, 1)
        return (call.length, 1, call.depth, 1, *a, 0, call.incx, 0, 0, call.incy, 0)
    a = (1, call.lda) if call.trans_a else (call.lda, 1)
    b = (1, call.ldb) if call.trans_b else (call.ldb, 1)
    return (call.M, call.N, call.K, call.batch, *a, call.stride_a, *b, call.stride_b, call.ldc, call.stride_c)


def _fixed(sizes: tuple[int, ...], strides: tuple[int, ...]) -> list[np.generic]:
    return [*map(np.uint32, sizes), *(np.int64(s) for s in strides)]


def _walkers(elements: int, work_items: int) -> tuple[int]:
    return (min(-(-elements // work_items), WALKERS),)


def _scale(session: Session, call: Call) -> Run:
    tile = kernel("scale").tile_for(session.device)
    if isinstance(call, GemmCall):
        sizes, strides = (call.M, call.N), (call.batch, call.ldc, 1, call.stride_c)
    else:
        sizes, strides = (call.length, 1), (1, call.incy, 1, 0)
    groups = _walkers(sizes[0] * sizes[1] * strides[0], tile.work_items)
    launch = session.relaunch(loaded(session, "scale", tile, {}), groups, (tile.work_items,), "Plf", _fixed(sizes, strides))

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
    ) -> None:
        launch(queue, c, offset_c, beta)

    return run


def _product(session: Session, call: Call, choice: Choice) -> Run:
    assert choice.tile is not None
    M, N, K, batch, *strides = _as_gemm(call)
    launch = session.relaunch(
        loaded(session, "plain", choice.tile, {}),
        _walkers(M * N * batch, choice.tile.work_items),
        (choice.tile.work_items,),
        "PlPlPlff",
        _fixed((M, N, K), (batch, *strides)),
    )

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
    ) -> None:
        launch(queue, a, offset_a, b, offset_b, c, offset_c, alpha, beta)

    return run
