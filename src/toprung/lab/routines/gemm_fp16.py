"""C = α·op(A)·op(B) + β·C from operands that a helper rounds to fp16: how the hopper ladder's first rungs are brought to bear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from toprung.backends.base import Buffer, Source
from toprung.errors import Unsupported
from toprung.kernels.build import Compiled, source_kernel
from toprung.lab.routines.base import Step
from toprung.lab.routines.gemm import Maker, Placed, round_up, without_product
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm

BRINGS = "A and the transpose of B in fp16, as whole tiles"
WAVES = 16
"""Work-groups of the helper for each multiprocessor; each takes tile after tile."""


def steps(compiled: Compiled[Rung], problem: Gemm, buffers: Mapping[str, Buffer], session: Any) -> list[Step]:
    """The launches: both operands to fp16, K along memory, as whole tiles padded with zeros; then the product.

    Raises
    ------
    Unsupported
        more than one product
    """
    if problem.batch != 1:
        raise Unsupported(f"{compiled.record} computes one product at a time: no batches")
    a, b, c = (Placed(buffers[m.name], m.rows, m.cols, m.ld) for m in problem.matrices)
    if (few := without_product(problem, c, Maker(session))) is not None:
        return few
    rung, tile, options = compiled.record, compiled.tile, compiled.options
    bk = tile.BK or 1
    cluster, units = options.get("CLUSTER", 1), session.device.compute_units
    M, N, depth = round_up(problem.M, tile.BM), round_up(problem.N, tile.BN), round_up(problem.K, bk)
    text = rung.source.with_name("narrow.cu").read_text("utf-8")
    narrow = source_kernel(Source("hopper/narrow", text, "narrow", {}, "cuda"), session)
    i = np.int32

    def narrowed(rows: int, all_rows: int, m: Placed, across: bool) -> tuple[Buffer, Step]:
        to = session.allocate(2 * all_rows * depth)
        groups = min(-(-all_rows // 64) * (depth // 64), WAVES * units)
        args = (i(rows), i(problem.K), m.buffer, i(m.ld), i(across), i(all_rows), i(depth), to)
        return to, Step("narrow", session.bind(narrow, (groups,), (256,), args))

    half_a, first = narrowed(problem.M, M, a, problem.trans[0] == "T")
    half_b, second = narrowed(problem.N, N, b, problem.trans[1] == "N")
    operands: tuple[Any, ...] = (half_a, half_b)
    if rung.maps:
        operands = (
            session.tensor_map(half_a, M, depth, (tile.BM, bk)),
            session.tensor_map(half_b, N, depth, (tile.BN // cluster, bk)),
        )
    groups = round_up(M // tile.BM, cluster) * (N // tile.BN)
    if options.get("PERSISTENT"):
        groups = min(groups, units // cluster * cluster)
    launch = session.bind(
        compiled.kernel,
        (groups,),
        (tile.work_items + rung.more_items,),
        (*operands, i(problem.M), i(problem.N), i(depth), np.float32(problem.alpha), np.float32(problem.beta), c.buffer, i(c.ld)),
        options,
    )
    kept = (half_a, half_b)  # a tensor map holds an address, not the memory

    def product(kept: object = kept) -> None:
        launch()

    return [first, second, Step(rung.name, product, helper=False)]
