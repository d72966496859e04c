"""Clocks until a multiply-add may use the result of the one before."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.arithmetic import chaos, differing, starts
from toprung.lab.probe.base import CLOCKS, SEED, Benchmark, Case, Placed, only_cuda, source
from toprung.oracle.placed import copied, fetched

LOCAL, REPEAT, LOOPS = 32, 128, 64


def _cases(device: Device) -> list[Case]:
    def place(session: Session) -> Placed:
        start, step = starts(LOCAL, SEED)
        ins = [copied(array, session) for array in (start, step)]
        out, clocks = session.allocate(4 * LOCAL), session.allocate(8 * LOCAL)

        def check() -> str:
            found = fetched(out, session, LOCAL, np.float32)
            return differing(found, chaos(start, step, 1 + LOOPS * REPEAT), 0.0, np.arange(LOCAL))

        def read() -> float:
            counted = fetched(clocks, session, LOCAL, np.uint64)
            return float(counted.max()) / (LOOPS * REPEAT)

        return Placed((np.int32(LOOPS), *ins, out, clocks), check, read)

    defines = {"LOCAL": LOCAL, "REPEAT": REPEAT}
    return [Case("one warp, one chain", defines, source("ffma_latency", "", defines, device), 1, LOCAL, LOOPS * REPEAT, place)]


BENCHMARK = Benchmark("latency of a multiply-add", CLOCKS, _cases, only_cuda("it reads the SM's clock"))
