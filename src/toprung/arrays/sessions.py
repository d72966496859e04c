"""Lookup of sessions and devices: from the place of an array, or from a ``device=`` argument."""

from __future__ import annotations

import functools
from typing import Any

from toprung import backends
from toprung.arrays.base import Home
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import BadArgument, NoDevice


def session_at(home: Home, queue: Any = None) -> Session:
    """Return the session of the device on which arrays lie; for OpenCL that of ``queue``, a pyopencl queue.

    Raises
    ------
    NoDevice
        a device that toprung cannot open
    """
    if home.kind == "opencl":
        return backends.adopt(queue)
    for backend in backends.backends():
        if backend.name == home.kind:
            for device in backend.devices():
                if device.handle == home.number:
                    return backends.session_for(device)
    raise NoDevice(f"the array is on {home}, which toprung cannot open. " + " ".join(backends.advice()))


def _usable(device: Device) -> Device:
    """Return a device that the library computes on; NoDevice for one that only the ladders use."""
    if reason := backends.ladders_only(device):
        raise NoDevice(f"{device} is for ladders alone: {reason}")
    return device


@functools.cache
def best(name: str | None = None) -> Device:
    """Return the best device there is, or the one of a name. It is looked for once; after NoDevice or UnknownName, again."""
    return backends.find(ladders=False) if name is None else _usable(backends.find(name))


def chosen(device: Device | str | None) -> Device:
    """Return the device that ``device=`` names; the best one for None."""
    if device is None or isinstance(device, str):
        return best(device)
    if not isinstance(device, Device):
        raise BadArgument(f"device is a name such as 'cuda:0' or a Device from toprung.devices(), not {device!r}")
    return _usable(device)
