"""One GPU, two ways to reach it: how a peer that knows only CUDA, or only OpenCL, takes part in a session of the other.

In a session of its own kind a peer works in the session's memory. Otherwise it gets a second session on the same GPU, with
memory and a clock of its own there.
"""

from __future__ import annotations

import functools
from typing import Any

from toprung import backends
from toprung.backends.base import Session
from toprung.device import Device
from toprung.oracle.placed import OnDevice


@functools.cache
def _session(device: Device) -> Session:
    return backends.open_device(device)  # kept until the process ends, like the libraries that use it


def placed_through(placed: OnDevice, backend: str) -> OnDevice:
    """The operands in memory that a backend reaches: those at hand if it is the session's own, else copies."""
    if placed.session.device.backend == backend:
        return placed
    other = backends.twin(placed.session.device, backend)
    assert other is not None, "a peer is asked for absent() before it is prepared"
    return OnDevice(placed.operands, _session(other))


def stream(session: Any) -> int:
    """A CUDA session's stream as other libraries take it."""
    return int(session.queue)


def no_cuda(device: Device) -> str:
    """Why CUDA cannot reach the device; empty if it can."""
    if device.kind != "gpu" or "nvidia" not in device.vendor.lower():
        return "needs an NVIDIA GPU"
    return "" if backends.twin(device, "cuda") else "CUDA does not reach this GPU; see toprung devices"
