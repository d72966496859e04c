"""The rate of outer products in registers, by shape and by order."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.arithmetic import differing, fused, sampled, starts
from toprung.lab.probe.base import GFLOPS, SEED, Benchmark, Case, Placed, only_gpus, source
from toprung.oracle.placed import copied, fetched
from toprung.oracle.problem import F32, F64, UNIT_ROUNDOFF

REPEAT, LOCAL, LOOPS = 8, 256, 256
ORDERS = ("row", "boustrophedon", "2x2 blocks", "column", "column boustrophedon")
SHAPES = (
    (4, 8, 1), (6, 8, 1), (8, 8, 0), (8, 8, 1), (8, 8, 2), (8, 8, 3), (8, 8, 4), (6, 12, 1), (8, 16, 0), (8, 16, 1), (8, 16, 4),
    (16, 8, 0), (16, 8, 1), (16, 8, 4),
)  # fmt: skip
"""Rows, columns and order."""


def _case(device: Device, rows: int, cols: int, order: int) -> Case:
    items = LOCAL * device.compute_units * 4
    loops = LOOPS * 64 // (rows * cols)

    def place(session: Session) -> Placed:
        start, step = starts(items, SEED)
        ins, out = [copied(array, session) for array in (start, step)], session.allocate(4 * items)

        def check() -> str:
            found = fetched(out, session, items, np.float32)
            some = sampled(items)
            expected, tolerance = _sum(start[some], step[some], rows, cols, loops)
            return differing(found[some], expected, tolerance, some)

        return Placed((np.int32(loops), *ins, out), check)

    label = f"{rows}x{cols} {ORDERS[order]}"
    defines = {"R": rows, "C": cols, "ORDER": order, "REPEAT": REPEAT, "LOCAL": LOCAL}
    work = 2.0 * items * loops * (REPEAT * rows * cols + rows + cols)
    kernel = source("ffma_outer", label, defines, device)
    return Case(label, defines, kernel, items // LOCAL, LOCAL, work, place, device.peak_gflops, power=True)


def _sum(start: F32, step: F32, rows: int, cols: int, loops: int) -> tuple[F64, F64]:
    """Return the value that one work-item writes, and how far rounding may move it.

    The operands are followed to the last bit; the accumulators, which depend on them alone, in float64.
    """
    factors = np.concatenate((
        np.float32(1) - np.float32(0.03125) * np.arange(rows, dtype=np.float32),
        np.float32(0.015625) * np.arange(cols, dtype=np.float32) - np.float32(1),
    ))  # fmt: skip
    now = start[:, None] * factors
    acc, size = np.zeros((2, start.size, rows, cols))
    for _ in range(loops):
        wide = now.astype(np.float64)
        product = REPEAT * wide[:, :rows, None] * wide[:, None, rows:]
        acc += product
        size += np.abs(product)
        now = fused(now, now, step[:, None])
    weights = 1 + 0.0078125 * np.arange(rows * cols).reshape(rows, cols)
    terms = loops * REPEAT + rows * cols
    return (acc * weights).sum((1, 2)), terms * UNIT_ROUNDOFF * (size * weights).sum((1, 2))


BENCHMARK = Benchmark(
    "multiply-adds as outer products in registers", GFLOPS, lambda device: [_case(device, *shape) for shape in SHAPES],
    only_gpus("a CPU's registers have no banks and no reuse caches"),
)  # fmt: skip
