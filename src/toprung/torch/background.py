"""Preparation of kernels beside the program: selecting, compiling and loading, so that no product has to wait for them."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
from collections.abc import Callable

from toprung.forks import in_child, renewed

WORKERS = 4
"""Threads that prepare kernels: NVRTC lets Python go on while it compiles."""

FAREWELL = 5.0
"""Seconds that the interpreter waits at its end for a kernel that is being compiled."""

URGENT, LATER = 0, 1
"""Order of jobs: what a product waits for, and what one may want soon."""


class Job:
    """A piece of work for the background.

    Attributes
    ----------
    done : set when it has been done, or has failed
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.done = work, threading.Event()


class Background:
    """Threads that do jobs, the urgent ones first; started with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._open: set[Job] = set()
        self._lock = renewed(threading.Lock())
        self._ending = False

    def do(self, work: Callable[[], None], order: int = URGENT) -> Job:
        """Have a piece of work done; it may not raise."""
        job = Job(work)
        with self._lock:
            self._open.add(job)
            if len(self._threads) < min(WORKERS, len(self._open)):
                thread = threading.Thread(target=self._run, name="toprung-prepares", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._jobs.put((order, next(self._numbers), job))
        return job

    def _run(self) -> None:
        while True:
            _, _, job = self._jobs.get()
            if job is None or self._ending:
                return
            try:
                job.work()
            finally:
                job.done.set()
                with self._lock:
                    self._open.discard(job)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all jobs so far are done; return False if that takes longer than ``seconds``."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            jobs = list(self._open)
        return all(job.done.wait(None if end is None else max(end - time.monotonic(), 0.0)) for job in jobs)

    def end(self) -> None:
        """Start no more jobs, and wait a little for those under way: a thread must not be in a compiler when the process ends."""
        self._ending = True
        for _ in self._threads:
            self._jobs.put((-1, next(self._numbers), None))
        end = time.monotonic() + FAREWELL
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))


HERE = Background()
"""This process's background."""


@in_child
def _of_parent() -> object:
    """Return the parent's background, which a child replaces: it has none of its threads."""
    global HERE
    theirs, HERE = HERE, Background()
    return theirs


atexit.register(lambda: HERE.end())


def do(work: Callable[[], None], order: int = URGENT) -> Job:
    """Have a piece of work done by this process's background."""
    return HERE.do(work, order)


def wait(seconds: float | None = None) -> bool:
    """Wait until all kernels that products have asked for so far are ready.

    Parameters
    ----------
    seconds : longest time to wait; None for as long as it takes

    Returns
    -------
    True if all are ready. A program that is about to capture a CUDA graph, or to be timed, may want to know.
    """
    return HERE.wait(seconds)
