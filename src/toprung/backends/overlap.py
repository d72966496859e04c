"""CUDA launches that take new leading arguments each time, go into any stream, and may begin before the previous one has ended."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Kernel, Session
from toprung.backends.cuda import _argument, _text, launch_config
from toprung.errors import LaunchError

SLOTS = {"P": "Q", "l": "q", "f": "f4x"}
"""Kinds of arguments that change (an address, a 64-bit integer, a float), and how each fills 8 bytes."""


class Overlapping:
    """A CUDA launch that may overlap the end of the previous one in its stream; for one thread at a time.

    It may begin before the previous kernel has ended, so that its launch costs no time of its own. Its kernel must therefore wait
    for the previous one (``griddepcontrol.wait``) before it touches memory.
    """

    def __init__(
        self,
        session: Session,
        kernel: Kernel,
        groups: int,
        local: int,
        kinds: str,
        fixed: Sequence[np.generic],
        overlap: bool = True,
    ) -> None:
        from cuda.bindings import driver

        found: Any = (session, kernel)
        self._driver, self._context, self._own = driver, found[0]._context, int(session.queue)
        self._number = int(self._context)
        self._function, self._what = found[1].function, f"{found[1].source.name} on {session.device}"
        leading = len(kinds)
        self._raw = bytearray(8 * leading)
        memory = np.frombuffer(self._raw, np.uint64)
        values = [_argument(value) for value in fixed]
        self._addresses = np.array(
            [*(memory.ctypes.data + 8 * i for i in range(leading)), *(value.ctypes.data for value in values)], np.uint64
        )
        self._kept = (session, kernel, memory, values)
        self._at = int(self._addresses.ctypes.data)
        self._pack = struct.Struct("<" + "".join(SLOTS[k] for k in kinds)).pack_into
        self._config = config = launch_config(driver, found[1], (groups, 1, 1), (local, 1, 1), overlap)
        self._queue = self._own
        config.hStream = driver.CUstream(self._own)

    def replace(self, place: int, value: np.generic | NDArray[Any]) -> None:
        """Set another value of the same kind for one of the ``fixed`` arguments, from the next launch on."""
        kept = self._kept[3][place]
        kept[...] = np.frombuffer(value.tobytes(), kept.dtype).reshape(kept.shape)

    def __call__(self, queue: Any, *values: Any) -> None:
        """Put one launch into a queue (None: the session's own)."""
        number = self._own if queue is None else int(queue)
        if number != self._queue:
            self._queue, self._config.hStream = number, self._driver.CUstream(number)
        self._pack(self._raw, 0, *values)
        driver = self._driver
        before = driver.cuCtxGetCurrent()[1]
        away = int(before) != self._number
        if away:  # another device's context is current, or none: restore it afterwards
            driver.cuCtxSetCurrent(self._context)
        (status,) = driver.cuLaunchKernelEx(self._config, self._function, self._at, 0)
        if away:
            driver.cuCtxSetCurrent(before)
        if status:
            raise LaunchError(f"{self._what}: {_text(driver, status)}")
