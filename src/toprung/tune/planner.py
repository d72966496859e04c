"""Planning by measuring, as a program asks for it: a process beside that measures for a while and then goes.

Everything that takes time or may crash is over there (``plan.py``), the ranking and the compilers too, so that the program waits
and nothing else; a script needs no guard around its main part for it.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from toprung.blas.call import Call
from toprung.blas.planning import PLANNERS
from toprung.blas.problems import problem_like
from toprung.device import Device
from toprung.store import Store

if TYPE_CHECKING:
    from toprung.tune.worker import Worker

LARGEST = {"gpu": 2e13, "cpu": 2e10}
"""Operations of the largest product that is measured, and MEMORY: bytes of the largest operands. More would take minutes, or room
that the program needs itself; the model is good at large ones, and ``toprung tune`` measures them when it is asked to."""
MEMORY = 1 << 30

IDLE = 10.0
"""Seconds that the process waits for the next call, and LITTLE: bytes of the operands that it may keep meanwhile."""
LITTLE = 64 << 20

LIMIT = 900.0
"""Seconds that a plan may take: what hangs is ended by the process itself long before."""


class Planner:
    """A process for one device at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._timer: threading.Timer | None = None

    def measure(self, device: Device, call: Call, precision: str) -> str:
        """See ``toprung.blas.planning.Planner``."""
        problem = problem_like(call)
        if problem is None:
            return "a vector with a negative increment is none that is measured"
        nbytes = sum(m.nbytes for m in problem.matrices)
        if problem.flops > LARGEST.get(device.kind, LARGEST["cpu"]) or nbytes > MEMORY:
            return "it is so large that a first call would take too long; toprung tune measures it"
        with self._lock:
            worker = self._of(device)
            try:
                said = str(worker.ask((problem, precision, Store.default().path), LIMIT))
            except BaseException:  # an interrupt, too: what it is at is no longer wanted
                self._end()
                raise
            if nbytes > LITTLE:
                self._end()
            else:
                self._timer = threading.Timer(IDLE, self._idle, (worker,))
                self._timer.daemon = True
                self._timer.start()
        return said

    def _of(self, device: Device) -> Worker:
        from toprung.tune.worker import Worker  # not where nothing is measured

        if self._timer is not None:
            self._timer.cancel()
        if self._worker is not None and self._worker.device != device.id:
            self._end()
        if self._worker is None:
            self._worker = Worker(device.id, "toprung.tune.plan")
        return self._worker

    def _idle(self, worker: Worker) -> None:
        with self._lock:
            if self._worker is worker:
                self._end()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None


def _begin() -> None:
    """Be the one that is asked; in a forked child anew, for the process is the parent's."""
    PLANNERS[:] = [Planner()]


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
