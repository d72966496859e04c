"""Clocks until a multiply-add may use the result of the one before."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.arithmetic import chaos, differing, starts
from toprung.lab.probe.base import CLOCKS, SEED, Benchmark, Case, Placed, only_cuda, source

LOCAL, REPEAT, LOOPS = 32, 128, 64


def _cases(device: Device) -> list[Case]:
    def place(session: Session) -> Placed:
        start, step = starts(LOCAL, SEED)
        ins = [session.allocate(4 * LOCAL) for _ in range(2)]
        out, clocks = session.allocate(4 * LOCAL), session.allocate(8 * LOCAL)
        for buffer, array in zip(ins, (start, step), strict=True):
            session.upload(buffer, array)

        def check() -> str:
            found = np.empty(LOCAL, np.float32)
            session.download(out, found)
            return differing(found, chaos(start, step, 1 + LOOPS * REPEAT), 0.0, np.arange(LOCAL))

        def read() -> float:
            counted = np.empty(LOCAL, np.uint64)
            session.download(clocks, counted)
            return float(counted.max()) / (LOOPS * REPEAT)

        return Placed((np.int32(LOOPS), *ins, out, clocks), check, read)

    defines = {"LOCAL": LOCAL, "REPEAT": REPEAT}
    return [Case("one warp, one chain", defines, source("ffma_latency", "", defines, device), 1, LOCAL, LOOPS * REPEAT, place)]


BENCHMARK = Benchmark("latency of a multiply-add", CLOCKS, _cases, only_cuda("it reads the SM's clock"))
