"""The kernel that mixes loads from shared memory with multiply-adds, for the two benchmarks that use it."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device
from toprung.lab.probe.arithmetic import differing, sampled
from toprung.lab.probe.base import SEED, Case, Placed, source
from toprung.oracle.placed import copied, fetched
from toprung.oracle.problem import F32, F64, UNIT_ROUNDOFF

LOCAL, STEPS, AHEAD, CHAINS, WARP = 1024, 64, 4, 8, 32
TURNS = 16384
"""Instructions of a thread in a launch, about."""
AS_WRITTEN = "its loads must stay where they stand and as wide as they are"
"""Reason why the kernel is written in CUDA C++."""


def case(device: Device, label: str, ratio: int, width: int, stride: int, each: int, vendor: float | None = None) -> Case:
    """Return the case of one mix.

    Parameters
    ----------
    ratio : multiply-adds to a load
    width : floats of a load
    stride : floats from one lane's to the next
    each : what a load and its multiply-adds count as
    """
    floats = (WARP - 1) * stride + STEPS * width
    groups = device.compute_units * max(1, 2048 // LOCAL)
    items = groups * LOCAL
    loops = max(1, TURNS // (STEPS * (ratio + 1)))

    def place(session: Session) -> Placed:
        data = np.random.default_rng(SEED).uniform(-1, 1, floats).astype(np.float32)
        source_, out = copied(data, session), session.allocate(4 * items * (width + 1))

        def check() -> str:
            found = fetched(out, session, (items, width + 1), np.float32)
            some = sampled(items)
            expected, tolerance = _results(data, some % WARP, ratio, width, stride, loops)
            return differing(found[some], expected, tolerance, some)

        return Placed((np.int32(loops), source_, out), check)

    defines = {
        "W": width, "RATIO": ratio, "STRIDE": stride, "STEPS": STEPS, "AHEAD": AHEAD, "CHAINS": CHAINS, "LOCAL": LOCAL,
        "FLOATS": floats,
    }  # fmt: skip
    work = float(items) * loops * STEPS * each
    return Case(label, defines, source("ffma_lds", label, defines, device), groups, LOCAL, work, place, vendor)


def _results(
    data: F32, lanes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], ratio: int, width: int, stride: int, loops: int
) -> tuple[F64, F64]:
    """Return what threads write, sums of what is loaded last and the sum of all squares, and how far rounding may move each."""
    at = lanes[:, None, None] * stride + np.arange(STEPS)[None, :, None] * width + np.arange(width)
    v = data[at].astype(np.float64)  # of a thread, by step and element
    last = v[:, :AHEAD]
    times = np.array([len(range(e, ratio, width)) for e in range(width)])
    squares = loops * (v**2 * times).sum((1, 2))
    expected = np.concatenate((last.sum(1), squares[:, None]), axis=1)
    terms = loops * STEPS * ratio // CHAINS + 2 * CHAINS
    tolerance = np.concatenate((AHEAD * UNIT_ROUNDOFF * np.abs(last).sum(1), terms * UNIT_ROUNDOFF * squares[:, None]), axis=1)
    return expected, tolerance
