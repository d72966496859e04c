"""Backends, found by searching this folder, and the devices they see."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toprung.backends.base import Backend, Session
from toprung.device import Device, rank
from toprung.errors import NoDevice, ToprungError, UnknownName


@functools.cache
def backends() -> tuple[Backend, ...]:
    """Return every backend of this folder."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        make = getattr(importlib.import_module(f"{__name__}.{module.name}"), "backend", None)
        if make is not None:
            found.append(make())
    return tuple(found)


def devices() -> list[Device]:
    """Return every device that can be opened now, best first: GPUs before CPUs, then by arithmetic rate. Empty if there is none.

    Returns
    -------
    A list of ``Device``. None is opened; one device may be there several times, once for each backend that reaches it.
    """
    return sorted((d for b in backends() for d in _seen(b)), key=rank, reverse=True)


_broken: dict[str, str] = {}
"""Backends whose runtime fails in a way that nobody foresaw, with the error."""


def _seen(backend: Backend) -> list[Device]:
    """Return a backend's devices; none if its runtime is broken, which must not keep the others from being used."""
    try:
        return backend.devices()
    except ToprungError:
        raise
    except Exception as error:  # somebody else's code: whatever it raises, there is no device
        _broken[backend.name] = f"{type(error).__name__}: {error}"
        return []


def advice() -> list[str]:
    """Return sentences on what is missing on this machine and how to get it."""
    lines = []
    for b in backends():
        _seen(b)
        lines += [f"{b.name}: its runtime fails ({_broken[b.name]})"] if b.name in _broken else b.advice()
    return lines


def find(name: str | None = None) -> Device:
    """Return the device a user means: by an id, a part of a name, or the best one.

    Raises
    ------
    NoDevice
        there is no device at all
    UnknownName
        no device fits ``name``
    """
    present = devices()
    if not present:
        raise NoDevice("no device found. " + " ".join(advice()))
    if name is None:
        return present[0]
    wanted = name.lower().strip()
    if not wanted:  # a part of every name
        raise UnknownName("device", name, map(str, present))
    for device in present:
        if wanted in (device.id, device.backend, device.slug):
            return device
    for device in present:
        if wanted in device.name.lower() or wanted in device.runtime.lower():
            return device
    absent = [line for line in advice() if line.lower().startswith(wanted.partition(":")[0])]
    raise UnknownName("device", name, map(str, present), " ".join(absent))


@functools.cache
def twin(device: Device, backend: str) -> Device | None:
    """Return a device as another backend sees it, None if that does not see it. Equal devices are matched by their order."""
    if device.backend == backend:
        return device
    alike = [d for b in backends() for d in b.devices() if d.slug == device.slug and d.kind == device.kind]
    here = [d.id for d in alike if d.backend == device.backend]
    there = [d for d in alike if d.backend == backend]
    place = here.index(device.id) if device.id in here else 0
    return there[place] if place < len(there) else None


def prelude(name: str) -> str:
    """Return the source that a backend puts in front of every OpenCL C kernel; empty for an unknown backend or one without."""
    file = next((getattr(b, "prelude", None) for b in backends() if b.name == name), None)
    return file.read_text() if file is not None else ""


def open_device(device: Device) -> Session:
    """Open a device with the backend that found it."""
    return next(b for b in backends() if b.name == device.backend).open(device)


_shared: dict[object, Session] = {}
_sharing = threading.RLock()


def session_for(device: Device) -> Session:
    """Return the process's session on a device, opened at the first call and kept; safe from any thread."""
    with _sharing:
        if device.id not in _shared:
            _shared[device.id] = open_device(device)
        return _shared[device.id]


def adopt(queue: Any) -> Session:
    """Return the session in the context of somebody else's pyopencl queue; one for each context and device, kept.

    Raises
    ------
    NoDevice
        toprung cannot use the queue's device
    """
    make = next(m for b in backends() if (m := getattr(b, "adopt", None)) is not None)
    with _sharing:
        key = queue.context.int_ptr, queue.device.int_ptr
        if key not in _shared:
            _shared[key] = make(queue)
        return _shared[key]


@contextmanager
def opened(device: Device) -> Iterator[Session]:
    """Open a device for the length of a ``with`` block."""
    session = open_device(device)
    try:
        yield session
    finally:
        session.close()
