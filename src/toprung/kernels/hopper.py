"""Launches on Hopper that its families share: addresses and sizes in memory."""

from __future__ import annotations

import functools
import threading
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, finalize

import numpy as np

from toprung.backends.base import Buffer, Session
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.forks import renewed

HOPPER = "sm_90"
"""The architecture whose instructions these kernels use."""
SHARED_BYTES = 227 * 1024
"""Bytes of shared memory of an SM that its blocks may use; each block takes 1 KB more."""
LARGEST_GROUP = 1 << 10
"""Largest number of rows of tiles that blocks walk together."""
DEEPEST = 1 << 24
"""Largest K: kernels' counts along K, and TMA's coordinates, fit 31 bits with room to spare."""
LIMIT = 10 << 30
"""Most bytes of operands that a separate pass lays out; larger ones are read where they are."""


@functools.lru_cache(16)
def is_hopper(device: Device) -> bool:
    """Return True for a Hopper GPU through CUDA."""
    return device.backend == "cuda" and device.arch == HOPPER


def ceil(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def padded(n: int) -> int:
    """Return a number of floats rounded up to 16 bytes, as the strides of padded rows are."""
    return ceil(n, 4) * 4


APART, AT_ONCE = 256, 64
"""Bytes from one counter to the next, for alignment, and number of counters allocated together."""


class Counter:
    """A number on the device that kernels add to, 0 at first.

    Its memory is used again but never freed: a graph that was captured may add to it long after the counter is gone.
    """

    _zero: ClassVar[WeakKeyDictionary[Session, list[Buffer]]] = WeakKeyDictionary()
    _free: ClassVar[WeakKeyDictionary[Session, list[Buffer]]] = WeakKeyDictionary()
    _taking: ClassVar = renewed(threading.RLock())

    def __init__(self, session: Session) -> None:
        with self._taking:  # several kernels are prepared at once
            zero, free = (kept.setdefault(session, []) for kept in (self._zero, self._free))
            if not zero and not free:  # many at once: allocating and copying takes longer than planning a product
                room = session.allocate(APART * AT_ONCE)
                session.upload(room, np.zeros(APART * AT_ONCE, np.uint8))
                zero += [room.part(APART * i, 8) for i in range(AT_ONCE)]
            is_zero = bool(zero)
            self._session, self.buffer = session, (zero or free).pop()
        if not is_zero:
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
