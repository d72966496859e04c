"""Lanes: the queues and the memory of a session that staged products of host arrays take, one product at a time."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import KEPT_BYTES, Buffer, Session
from toprung.forks import renewed


class Lane:
    """Resources of a session for one staged product at a time: queues for both directions and the work, and kept memory."""

    def __init__(self, session: Session) -> None:
        self.lock = renewed(threading.Lock())
        self.session = session
        self.inward, self.work, self.outward = (session.new_queue() for _ in range(3))
        self._pinned: dict[str, NDArray[np.uint8]] = {}
        self._memory: dict[str, Buffer] = {}

    def pinned(self, name: str, elements: int) -> NDArray[np.float32]:
        """Return page-locked memory that is kept under a name, replaced by a larger piece when more is needed."""
        found = self._pinned.get(name)
        if found is None or found.nbytes < 4 * elements:
            self._pinned.pop(name, None)
            found = self._pinned[name] = self.session.pinned(1 << max(4 * elements - 1, 1).bit_length())
        return found[: 4 * elements].view(np.float32)

    def memory(self, name: str, elements: int) -> Buffer:
        """Return device memory; pieces up to ``KEPT_BYTES`` are kept under a name."""
        nbytes = 4 * max(elements, 1)
        if nbytes > KEPT_BYTES:
            return self.session.allocate(nbytes)
        found = self._memory.get(name)
        if found is None or found.nbytes < nbytes:
            self._memory.pop(name, None)
            found = self._memory[name] = self.session.allocate(1 << (nbytes - 1).bit_length())
        return found
