"""Rate at which work-groups that do next to nothing follow each other."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.base import Benchmark, Case, Placed, Unit, only_gpus, source
from toprung.oracle.placed import copied, fetched

SIZES = (64, 256, 1024)
EACH = 256
VALUE = 20121


def _case(device: Device, local: int) -> Case:
    groups, defines = EACH * device.compute_units, {"LOCAL": local}

    def place(session: Session) -> Placed:
        out = copied(np.zeros(groups, np.int32), session)

        def check() -> str:
            wrong = int((fetched(out, session, groups, np.int32) != VALUE).sum())
            return f"{wrong} of {groups} work-groups did not write" if wrong else ""

        return Placed((np.int32(VALUE), out), check)

    return Case(
        f"{local} work-items", defines, source("work_groups", str(local), defines, device), groups, local, float(groups), place
    )


BENCHMARK = Benchmark(
    "work-groups that do next to nothing",
    Unit("work-groups per clock and SM", per_clock=True),
    lambda device: [_case(device, n) for n in SIZES if n <= device.max_work_group],
    only_gpus("on a CPU a work-group is a function call"),
)
