"""Launches on Hopper that its families share: addresses and sizes in memory."""

from __future__ import annotations

import functools
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, finalize

import numpy as np

from toprung.backends.base import Buffer, Session
from toprung.device import Device
from toprung.errors import LaunchError

HOPPER = "sm_90"
"""The architecture whose instructions these kernels use."""


@functools.lru_cache(16)
def is_hopper(device: Device) -> bool:
    """Return True for a Hopper GPU through CUDA."""
    return device.backend == "cuda" and device.arch == HOPPER


def ceil(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


APART, AT_ONCE = 256, 64
"""Bytes from one counter to the next, for alignment, and number of counters allocated together."""


class Counter:
    """A number on the device that kernels add to, 0 at first.

    Its memory is used again but never freed: a graph that was captured may add to it long after the counter is gone.
    """

    _zero: ClassVar[WeakKeyDictionary[Session, list[Buffer]]] = WeakKeyDictionary()
    _free: ClassVar[WeakKeyDictionary[Session, list[Buffer]]] = WeakKeyDictionary()

    def __init__(self, session: Session) -> None:
        zero, free = (kept.setdefault(session, []) for kept in (self._zero, self._free))
        if not zero and not free:  # many at once: allocating and copying takes longer than planning a product
            room = session.allocate(APART * AT_ONCE)
            session.upload(room, np.zeros(APART * AT_ONCE, np.uint8))
            zero += [room.part(APART * i, 8) for i in range(AT_ONCE)]
        self._session, self.buffer = session, (zero or free).pop()
        if not zero:
            session.upload(self.buffer, np.zeros(1, np.uint64))
        finalize(self, free.append, self.buffer)

    def read(self) -> int:
        """Return the number; waits for the device."""
        from cuda.bindings import driver

        found: Any = self._session
        with found.current():
            (status,) = driver.cuCtxSynchronize()
        if status:
            raise LaunchError(f"{found.device} could not be waited for: {status.name}")
        number = np.empty(1, np.uint64)
        self._session.download(self.buffer, number)
        return int(number[0])


def narrow(x: float) -> float:
    """Return a scalar as float32 has it, infinite where it is too large."""
    if x in (0.0, 1.0):
        return x
    with np.errstate(over="ignore"):
        return float(np.float32(x))
