"""Backends, found by searching this folder, and the devices they see."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from toprung import forks
from toprung.backends import waiting
from toprung.backends.base import Backend, Session
from toprung.device import Device, rank
from toprung.errors import NoDevice, ToprungError, UnknownName, let_through


def constants(package: str, folders: Iterable[str], name: str) -> dict[str, Any]:
    """Return a constant of each module of a package that has it, by the module's name; those that begin with ``_`` have none."""
    import pkgutil  # it takes a millisecond, which `import toprung` need not spend

    modules = sorted(found.name for found in pkgutil.iter_modules(folders) if not found.name.startswith("_"))
    values = {module: getattr(importlib.import_module(f"{package}.{module}"), name, None) for module in modules}
    return {module: value for module, value in values.items() if value is not None}


@functools.cache
def backends() -> tuple[Backend, ...]:
    """Return every backend of this folder."""
    return tuple(make() for make in constants(__name__, __path__, "backend").values())


def devices() -> list[Device]:
    """Return every device that can be opened now, best first: GPUs before CPUs, then by arithmetic rate. Empty if there is none.

    Returns
    -------
    A list of ``Device``. None is opened; one device may be there several times, once for each backend that reaches it. Those that
    only the ladders use come last.
    """
    return _sorted(backends())


def _sorted(some: Iterable[Backend]) -> list[Device]:
    """Return the devices of some backends, best first."""
    return sorted((d for b in some for d in _seen(b)), key=lambda d: (not ladders_only(d), *rank(d)), reverse=True)


def ladders_only(device: Device) -> str:
    """Return why the library does not compute on a device; empty if it does, and for a backend that is not of this folder."""
    return _reason(next((b for b in backends() if b.name == device.backend), None))


def _reason(backend: Backend | None) -> str:
    return str(getattr(backend, "ladders_only", ""))


def languages(device: Device) -> tuple[str, ...]:
    """Return the languages of kernels that a device's backend compiles, the preferred one first; all for an unknown backend."""
    own = next((b for b in backends() if b.name == device.backend), None)
    return own.languages if own is not None else tuple(dict.fromkeys(word for b in backends() for word in b.languages))


_broken: dict[str, str] = {}
"""Unexpected errors of each backend's runtime at its last look for devices, by backend."""


def _seen(backend: Backend) -> list[Device]:
    """Return a backend's devices; none if its runtime is broken, which must not keep the others from being used."""
    _broken.pop(backend.name, None)
    try:
        return backend.devices()
    except ToprungError:
        raise
    except Exception as error:  # somebody else's code: whatever it raises, there is no device
        let_through(error)
        _broken[backend.name] = f"{type(error).__name__}: {error}"
        return []


def advice(ladders: bool = True) -> list[str]:
    """Return sentences on what is missing on this machine and how to get it; without ``ladders`` only what the library uses."""
    lines = []
    for b in backends():
        if not ladders and _reason(b):
            continue
        _seen(b)
        lines += [f"{b.name}: its runtime fails ({_broken[b.name]})"] if b.name in _broken else b.advice()
    return lines


def find(name: str | None = None, ladders: bool = True) -> Device:
    """Return the device a user means: by an id, a part of a name, or the best one; without ``ladders`` one the library uses.

    Raises
    ------
    NoDevice
        there is no device at all
    UnknownName
        no device fits ``name``
    """
    if name is not None and not name.strip():
        raise UnknownName("device", name, map(str, devices()))  # a part of every name
    # a named backend is searched alone: another runtime that looks for devices may invalidate a CUDA graph's capture. Backends
    # that only ladders use are searched last, so that other callers do not wait for them
    everyone = backends()
    plain = [b for b in everyone if not _reason(b)]
    named = [b for b in (everyone if ladders else plain) if b.name == (name or "").lower().strip().partition(":")[0]]
    groups = [named, plain, everyone][: 3 if ladders else 2]
    present: list[Device] = []
    for group in groups:
        present = _sorted(group)
        if name is None and present:
            return present[0]
        if name is not None and (found := _named(name.lower().strip(), present)):
            return found
    if not present:
        raise NoDevice("no device found. " + " ".join(advice(ladders)))
    assert name is not None
    wanted = name.lower().strip()
    absent = [line for line in advice() if line.lower().startswith(wanted.partition(":")[0])]
    raise UnknownName("device", name, map(str, present), " ".join(absent))


def _named(wanted: str, present: list[Device]) -> Device | None:
    """Return the device with this id, backend or slug, the best of a kind, else the first with this in its name or runtime."""
    for device in present:
        if wanted in (device.id, device.backend, device.slug, device.kind):
            return device
    if wanted in ("gpu", "cpu"):
        return None  # "gpu" is a part of "wgpu", the runtime of every WebGPU device
    return next((d for d in present if wanted in d.name.lower() or wanted in d.runtime.lower()), None)


@functools.cache
def twin(device: Device, backend: str) -> Device | None:
    """Return a device as another backend sees it, None if that does not see it. Equal devices are matched by their order."""
    if device.backend == backend:
        return device
    both = (b for b in backends() if b.name in (device.backend, backend))
    alike = [d for b in both for d in b.devices() if d.slug == device.slug and d.kind == device.kind]
    here = [d.id for d in alike if d.backend == device.backend]
    there = [d for d in alike if d.backend == backend]
    place = here.index(device.id) if device.id in here else 0
    return there[place] if place < len(there) else None


def prelude(name: str) -> str:
    """Return the source that a backend puts in front of every OpenCL C kernel; empty for an unknown backend or one without."""
    file = next((getattr(b, "prelude", None) for b in backends() if b.name == name), None)
    return file.read_text("utf-8") if file is not None else ""


def open_device(device: Device) -> Session:
    """Open a device with the backend that found it; one that was pickled is looked for again, and NoDevice if it is not here."""
    own = next(b for b in backends() if b.name == device.backend)
    if device.handle is None:
        same = [d for d in own.devices() if (d.id, d.slug) == (device.id, device.slug)]
        if not same:
            raise NoDevice(f"{device} comes from another machine: choose one of this one's (see toprung devices)")
        device = same[0]
    return own.open(device)


_shared: dict[object, Session] = {}
"""Sessions of this process, and those of its parents, which are of no use here and are never freed."""

_sharing = forks.renewed(threading.RLock())


def session_for(device: Device) -> Session:
    """Return the process's session on a device, opened at the first call and kept; safe from any thread."""
    with _sharing:
        key = forks.generation, device.id
        if key not in _shared:
            _shared[key] = open_device(device)
        return _shared[key]


def adopt(queue: Any) -> Session:
    """Return the session in the context of somebody else's pyopencl queue; one for each context and device, kept.

    Raises
    ------
    NoDevice
        toprung cannot use the queue's device
    """
    make = next(m for b in backends() if (m := getattr(b, "adopt", None)) is not None)
    with _sharing:
        key = forks.generation, queue.context.int_ptr, queue.device.int_ptr
        if key not in _shared:
            _shared[key] = make(queue)
        return _shared[key]


@contextmanager
def opened(device: Device) -> Iterator[Session]:
    """Open a device for the length of a ``with`` block, in which Ctrl-C ends the wait for a kernel or a compiler."""
    session = open_device(device)
    for name in ("seconds", "compile"):
        setattr(session, name, functools.partial(waiting.patiently, getattr(session, name)))
    try:
        yield session
    finally:
        if not waiting.abandoned():
            session.close()
