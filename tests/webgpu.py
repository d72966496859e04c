"""The WebGPU adapter that tests run on, and what the rungs of its ladder promise."""

from __future__ import annotations

import functools

from conftest import require
from toprung import backends
from toprung.device import Device
from toprung.oracle.data import DISTRIBUTIONS

BEYOND = ("subnormal", "inf", "-inf", "nan")
FINITE = tuple(name for name in DISTRIBUTIONS if name not in BEYOND)
"""Distributions of finite, normal numbers: what WGSL lets a kernel promise anything of."""


@functools.cache
def _found() -> tuple[Device | None, str]:
    (webgpu,) = (b for b in backends.backends() if b.name == "webgpu")
    found = webgpu.devices()
    return (found[0] if found else None), " ".join(webgpu.advice())


def adapter() -> Device:
    """The first adapter; the test is skipped, with what to do, where there is none."""
    device, advice = _found()
    require(device, advice)
    assert device is not None
    return device
