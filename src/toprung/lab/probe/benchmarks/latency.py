"""Clocks until what a thread loads has come, from each level of memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.base import CLOCKS, SEED, Benchmark, Case, Placed, only_cuda, source
from toprung.oracle.placed import copied, fetched

SHARED, L1, L2 = 0, 1, 2
LEVELS = (("shared", SHARED, 128, 33), ("L1", L1, 128, 32), ("L2", L2, 1 << 16, 32), ("memory", L2, 1 << 21, 32))
"""Name, way to read it, links of the chain, and numbers from one link to the next: 16 KiB, 8 MiB, 256 MiB, a line of 128 bytes a
link; in shared memory the links lie in different banks."""
STEPS = 4096


def chain(links: int, stride: int) -> NDArray[np.uint32]:
    """Return a ring through all links in random order, as the index of each link's successor."""
    order = np.random.default_rng(SEED).permutation(links)
    made = np.zeros(links * stride, np.uint32)
    made[order * stride] = np.roll(order, -1) * stride
    return made


def _case(device: Device, name: str, kind: int, links: int, stride: int) -> Case:
    defines = {"KIND": kind, "LINKS": links, "STRIDE": stride}

    def place(session: Session) -> Placed:
        ring = chain(links, stride)
        data, state, clocks = copied(ring, session), copied(np.zeros(3, np.uint32), session), session.allocate(8)

        def check() -> str:
            found = fetched(state, session, 3, np.uint32)
            at = found[1]
            for _ in range(STEPS):
                at = ring[at]
            return "" if at == found[2] else f"the chain from {found[1]} ended at {found[2]}, not {at}"

        def read() -> float:
            counted = fetched(clocks, session, 1, np.uint64)
            return float(counted[0]) / STEPS

        return Placed((np.int32(STEPS), data, state, clocks), check, read)

    return Case(name, defines, source("latency", name, defines, device), 1, 1, STEPS, place)


def _cases(device: Device) -> list[Case]:
    return [_case(device, *level) for level in LEVELS]


BENCHMARK = Benchmark("latency of a load", CLOCKS, _cases, only_cuda("it reads the SM's clock"))
