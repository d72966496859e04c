"""Preparation of kernels beside the program: selecting, compiling and loading, so that no product has to wait for them."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import time
from collections.abc import Callable

from toprung.errors import NotReady
from toprung.forks import in_child, renewed

WORKERS = 4
"""Threads that prepare kernels: NVRTC lets Python go on while it compiles."""

FAREWELL = 5.0
"""Seconds that the interpreter waits at its end for a kernel that is being compiled."""

LONGEST = 600.0
"""Longest wait for a job, in seconds, where the caller names none: compilers take seconds, on a crowded machine minutes."""

URGENT, LATER = 0, 1
"""Order of jobs: what a product waits for, and what one may want soon."""


class Job:
    """A piece of work for the background.

    Attributes
    ----------
    what : what it prepares, for an error
    done : set when it has been done, or has failed
    """

    def __init__(self, work: Callable[[], None], what: str) -> None:
        self.work, self.what, self.done = work, what, threading.Event()

    def settle(self) -> bool:
        """Wait until it is done, and return True.

        Raises
        ------
        NotReady
            it takes longer than ``LONGEST`` seconds
        """
        if not self.done.wait(LONGEST):
            raise NotReady(f"{self.what} is not ready after {LONGEST:g} s: call again to wait on, or toprung.torch.disable()")
        return True


class Background:
    """Threads that do jobs, the urgent ones first; started with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._open: set[Job] = set()
        self._lock = renewed(threading.Lock())
        self._ending = False

    def do(self, work: Callable[[], None], what: str, order: int = URGENT) -> Job:
        """Have a piece of work done; it may not raise."""
        job = Job(work, what)
        if self._ending:  # at the interpreter's end no thread is left for it
            work()
            job.done.set()
            return job
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
        with self._lock:
            jobs = list(self._open)
        if seconds is None:
            return all(job.settle() for job in jobs)
        end = time.monotonic() + seconds
        return all(job.done.wait(max(end - time.monotonic(), 0.0)) for job in jobs)

    def end(self) -> None:
        """Start no more jobs, and wait a little for those under way: a thread must not be in a compiler when the process ends."""
        self._ending = True
        with self._lock:
            self._open.clear()  # what is not done by then never will be
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


def do(work: Callable[[], None], what: str, order: int = URGENT) -> Job:
    """Have a piece of work done by this process's background; ``what`` names what it prepares."""
    return HERE.do(work, what, order)


def wait(seconds: float | None = None) -> bool:
    """Wait until all kernels that products have asked for so far are ready.

    Parameters
    ----------
    seconds : longest time to wait; None for as long as it takes, at most 600 s for a kernel

    Returns
    -------
    True if all are ready. A program that is about to capture a CUDA graph, or to be timed, may want to know.

    Raises
    ------
    NotReady
        no time was named, and a kernel took longer than that
    """
    return HERE.wait(seconds)
