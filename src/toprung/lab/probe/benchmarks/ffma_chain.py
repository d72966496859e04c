"""The rate of multiply-adds whose operands no register bank refuses."""

from __future__ import annotations

import numpy as np

from toprung import backends
from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.arithmetic import Multiply, chaos, differing, fused, sampled, separate, starts
from toprung.lab.probe.base import GFLOPS, SEED, Benchmark, Case, Placed, source
from toprung.oracle.placed import copied, fetched
from toprung.oracle.problem import F32

REPEAT, LOCAL = 64, 256
LOOPS = {"gpu": 64, "cpu": 16, "other": 16}
CHAINS, WIDTHS = 12, (4, 8, 16)
"""Chains of a work-item on a CPU, enough for two units with a latency of six clocks, and floats of each. Which width fills the
registers and spills none depends on the CPU: the fastest counts."""


def _cases(device: Device) -> list[Case]:
    if device.kind == "cpu" and "opencl" in backends.languages(device):
        return [_case(device, f"{CHAINS} chains of float{width}", CHAINS, width) for width in WIDTHS]
    return [_case(device, "x*x + c", 8, 1)]


def _case(device: Device, label: str, chains: int, width: int) -> Case:
    loops = LOOPS[device.kind]
    local, groups = min(LOCAL, device.max_work_group), device.compute_units * (8 if device.kind == "gpu" else 4)
    floats = local * groups * width

    def place(session: Session) -> Placed:
        start, step = starts(floats, SEED)
        ins, out = [copied(array, session) for array in (start, step)], session.allocate(4 * floats)

        def check() -> str:
            found = fetched(out, session, floats, np.float32)
            some = sampled(floats)
            results = [_sum(start[some], step[some], chains, loops, multiply) for multiply in (fused, separate)]
            # a GPU fuses, unless its language leaves that to the driver
            certain = device.kind == "gpu" and "wgsl" not in backends.languages(device)
            problems = [differing(found[some], r, 0.0, some) for r in results[: 1 if certain else 2]]
            return "" if "" in problems else problems[0]

        return Placed((np.int32(loops), *ins, out), check)

    defines = {"CHAINS": chains, "REPEAT": REPEAT, "LOCAL": local, "VEC": width}
    work = 2.0 * floats * loops * REPEAT * chains
    kernel = source("ffma_chain", "" if width == 1 else label, defines, device)
    return Case(label, defines, kernel, groups, local, work, place, device.peak_gflops, power=True)


def _sum(start: F32, step: F32, chains: int, loops: int, multiply: Multiply) -> F32:
    """Return the values that work-items write at some places."""
    factors = np.float32(1) - np.float32(0.0625) * np.arange(chains, dtype=np.float32)
    ends = chaos(start[:, None] * factors, step[:, None], loops * REPEAT, multiply)
    total = np.zeros(start.size, np.float32)
    for i in range(chains):
        total = total + ends[:, i]
    return total


BENCHMARK = Benchmark("multiply-adds, two registers read", GFLOPS, _cases)
