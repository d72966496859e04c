"""Cost of a launch that has nothing to do."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.base import MICROSECONDS, Benchmark, Case, Placed, source
from toprung.oracle.placed import copied, fetched

VALUE = 20121


def _place(session: Session) -> Placed:
    out = copied(np.zeros(1, np.int32), session)

    def check() -> str:
        found = fetched(out, session, 1, np.int32)
        return "" if found[0] == VALUE else f"the launch wrote {found[0]}, not {VALUE}"

    return Placed((np.int32(VALUE), out), check)


def _cases(device: Device) -> list[Case]:
    kernel = source("launch", "", {}, device)
    return [
        Case("back to back", {}, kernel, 1, 1, 1.0, _place),
        Case("one, and waiting for it", {}, kernel, 1, 1, 1.0, _place, synchronous=True),
    ]


BENCHMARK = Benchmark("a launch that does next to nothing", MICROSECONDS, _cases)
