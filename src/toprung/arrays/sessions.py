"""From where an array lies to the session that works there."""

from __future__ import annotations

import functools
from typing import Any

from toprung import backends
from toprung.arrays.base import Home
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import BadArgument, NoDevice


def session_at(home: Home, queue: Any = None) -> Session:
    """The session for arrays that lie on a device."""
    if home.kind == "opencl":
        return backends.adopt(queue)
    for backend in backends.backends():
        if backend.name == home.kind:
            for device in backend.devices():
                if device.handle == home.number:
                    return backends.session_for(device)
    raise NoDevice(f"the array is on {home}, which toprung cannot open. " + " ".join(backends.advice()))


@functools.cache
def best() -> Device:
    """Return the best device there is, looked for once."""
    return backends.find()


def chosen(device: Device | str | None) -> Device:
    """The device that ``device=`` means; the best one for None."""
    if device is None or isinstance(device, str):
        return backends.find(device)
    if not isinstance(device, Device):
        raise BadArgument(f"device is a name such as 'cuda:0' or a Device from toprung.devices(), not {device!r}")
    return device
