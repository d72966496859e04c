"""Bytes a second from workgroup memory, read a vector of four floats at a time."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.arithmetic import differing, sampled
from toprung.lab.probe.base import GBYTES, SEED, Benchmark, Case, Placed, source
from toprung.oracle.placed import copied, fetched
from toprung.oracle.problem import UNIT_ROUNDOFF

LOCAL, STEPS = 64, 64
LOOPS = {"gpu": 256, "cpu": 16, "other": 16}


def _cases(device: Device) -> list[Case]:
    loops, groups = LOOPS[device.kind], device.compute_units * 16
    items = LOCAL * groups

    def place(session: Session) -> Placed:
        data = np.random.default_rng(SEED).uniform(-1, 1, (LOCAL, 4)).astype(np.float32)
        tile, out = copied(data, session), session.allocate(16 * items)

        def check() -> str:
            found = fetched(out, session, (items, 4), np.float32)
            some = sampled(items)
            shifts = (np.arange(loops)[:, None] + np.arange(STEPS)).ravel()
            lanes = some[:, None] % LOCAL
            wide = data.astype(np.float64)
            read = np.concatenate((wide[(lanes + shifts) % LOCAL], wide[(lanes - shifts) % LOCAL]), axis=1)
            return differing(found[some], read.sum(1), loops * STEPS * UNIT_ROUNDOFF * np.abs(read).sum(1), some)

        return Placed((np.int32(loops), tile, out), check)

    defines = {"LOCAL": LOCAL, "STEPS": STEPS}
    work = 2.0 * 16 * items * loops * STEPS
    return [Case("vec4f", defines, source("workgroup_memory", "", defines, device), groups, LOCAL, work, place)]


BENCHMARK = Benchmark("reads of workgroup memory", GBYTES, _cases)
