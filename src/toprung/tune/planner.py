"""Autotuning on first use, as a program calls it: a helper process measures, stays for the next call a while, and then ends.

Everything that takes time or may crash happens in that process (``plan.py``), ranking and compiling included; the program only
waits. A script needs no ``if __name__ == "__main__"`` guard for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from toprung.device import Device
from toprung.forks import renewed
from toprung.gemm.desc import Desc
from toprung.oracle.problems import problem_like
from toprung.store import Store

if TYPE_CHECKING:
    from toprung.tune.worker import Worker

LARGEST = {"gpu": 2e13, "cpu": 2e10}
"""Floating-point operations of the largest product that is autotuned, by kind of device. A larger one would take minutes; the cost
model is good at those, and ``toprung tune`` measures them on request."""
MEMORY = 1 << 30
"""Bytes of the largest operands, all together, that are autotuned: a program may need more memory than that itself."""

IDLE = 10.0
"""Seconds that the process waits for the next call before it is ended."""
LITTLE = 64 << 20
"""Bytes of operands, all together, that the process may keep while it waits; with more it is ended at once."""

LIMIT = 900.0
"""Seconds that autotuning one call may take; the process itself ends a candidate that hangs long before."""


class Planner:
    """A client of the autotuning process, which serves one device at a time."""

    def __init__(self) -> None:
        self._lock = renewed(threading.Lock())
        self._worker: Worker | None = None
        self._timer: threading.Timer | None = None

    def measure(self, device: Device, desc: Desc, precision: str) -> str:
        """Autotune a call in the process; return the reason why that was not possible, empty if it was."""
        problem = problem_like(desc)
        if problem is None:
            return "a vector with a negative increment is none that is measured"
        nbytes = sum(m.nbytes for m in problem.matrices)
        if problem.flops > LARGEST.get(device.kind, LARGEST["cpu"]) or nbytes > MEMORY:
            return "it is so large that a first call would take too long; toprung tune measures it"
        with self._lock:
            worker = self._of(device)
            try:
                said = str(worker.ask((problem, precision, Store.default().path), LIMIT))
            except BaseException:  # an interrupt, too: the measurement is no longer wanted
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
        from toprung.tune.worker import Worker  # imported only where something is measured

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
