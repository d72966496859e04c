"""Clocks of a barrier at which all work-items arrive at once, by their number."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.base import CLOCKS, Benchmark, Case, Placed, only_cuda, source
from toprung.oracle.placed import fetched

SIZES = (64, 128, 256, 512, 1024)
REPEAT, LOOPS, CHECKED = 16, 64, 64


def _case(device: Device, local: int) -> Case:
    defines = {"LOCAL": local, "REPEAT": REPEAT, "CHECKED": CHECKED}

    def place(session: Session) -> Placed:
        out, clocks = session.allocate(4 * local), session.allocate(8 * local)

        def check() -> str:
            found = fetched(out, session, local, np.uint32)
            early = int((found != CHECKED).sum())
            return f"{early} of {local} threads passed a barrier before their neighbours came" if early else ""

        def read() -> float:
            counted = fetched(clocks, session, local, np.uint64)
            return float(counted.max()) / (LOOPS * REPEAT)

        return Placed((np.int32(LOOPS), out, clocks), check, read)

    return Case(f"{local} threads", defines, source("barrier", str(local), defines, device), 1, local, LOOPS * REPEAT, place)


BENCHMARK = Benchmark("a barrier", CLOCKS, lambda device: [_case(device, n) for n in SIZES], only_cuda("it reads the SM's clock"))
