"""The rate of multiply-adds whose operands no register bank refuses."""

from __future__ import annotations

import numpy as np

from toprung import backends
from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.arithmetic import Multiply, chaos, differing, fused, sampled, separate, starts
from toprung.lab.probe.base import GFLOPS, SEED, Benchmark, Case, Placed, source
from toprung.oracle.problem import F32

CHAINS, REPEAT, LOCAL = 8, 64, 256
LOOPS = {"gpu": 64, "cpu": 16, "other": 16}


def _cases(device: Device) -> list[Case]:
    loops = LOOPS[device.kind]
    local, groups = min(LOCAL, device.max_work_group), device.compute_units * (8 if device.kind == "gpu" else 4)
    items = local * groups

    def place(session: Session) -> Placed:
        start, step = starts(items, SEED)
        out = session.allocate(4 * items)
        ins = [session.allocate(4 * items) for _ in range(2)]
        for buffer, array in zip(ins, (start, step), strict=True):
            session.upload(buffer, array)

        def check() -> str:
            found = np.empty(items, np.float32)
            session.download(out, found)
            some = sampled(items)
            results = [_sum(start[some], step[some], loops, multiply) for multiply in (fused, separate)]
            # a GPU fuses, unless its language leaves that to the driver
            certain = device.kind == "gpu" and "wgsl" not in backends.languages(device)
            problems = [differing(found[some], r, 0.0, some) for r in results[: 1 if certain else 2]]
            return "" if "" in problems else problems[0]

        return Placed((np.int32(loops), *ins, out), check)

    defines = {"CHAINS": CHAINS, "REPEAT": REPEAT, "LOCAL": local}
    work = 2.0 * items * loops * REPEAT * CHAINS
    return [
        Case(
            "x*x + c",
            defines,
            source("ffma_chain", "", defines, device),
            groups,
            local,
            work,
            place,
            device.peak_gflops,
            power=True,
        )
    ]


def _sum(start: F32, step: F32, loops: int, multiply: Multiply) -> F32:
    """Return the value that one work-item writes."""
    factors = np.float32(1) - np.float32(0.0625) * np.arange(CHAINS, dtype=np.float32)
    ends = chaos(start[:, None] * factors, step[:, None], loops * REPEAT, multiply)
    total = np.zeros(start.size, np.float32)
    for i in range(CHAINS):
        total = total + ends[:, i]
    return total


BENCHMARK = Benchmark("multiply-adds, two registers read", GFLOPS, _cases)
