"""Preparation of kernels beside the program: selecting, compiling and loading, so that no product has to wait for them.

Compilers run without the GIL, but selection holds it. So jobs begin one after another with a pause between, unless somebody waits.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator

from toprung.errors import NotReady
from toprung.forks import in_child, renewed

WORKERS = 4
"""Threads that prepare kernels: NVRTC lets Python go on while it compiles."""

PREPARING = 3e-3
"""Seconds for which preparing a kind of product holds the GIL, about: with its kernel compiled before it took 2 to 3 ms on the
host of an H200. ``benchmarks/preparing.py`` measures it."""

PAUSE = PREPARING / 0.03
"""Seconds between the beginnings of two jobs: preparing takes 3 % of the program's time at most."""

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
    begun : True once the background was given it
    done : set when it has been done, or has failed
    """

    def __init__(self, work: Callable[[], None], what: str) -> None:
        self.work, self.what, self.begun, self.done = work, what, False, threading.Event()

    def settle(self) -> bool:
        """Wait until it is done, without pauses between jobs meanwhile, and return True.

        Raises
        ------
        NotReady
            it takes longer than ``LONGEST`` seconds
        """
        with HERE.hurried():
            ready = self.done.wait(LONGEST)
        if not ready:
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
        self._next, self._waiting, self._hurry = 0.0, 0, threading.Event()

    def begin(self, job: Job, order: int = URGENT) -> None:
        """Have a job done, whose work may not raise, unless it has begun."""
        with self._lock:
            if job.begun:
                return
            job.begun = True
        if self._ending:  # at the interpreter's end no thread is left for it
            job.work()
            job.done.set()
            return
        with self._lock:
            self._open.add(job)
            if len(self._threads) < min(WORKERS, len(self._open)):
                thread = threading.Thread(target=self._run, name="toprung-prepares", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._jobs.put((order, next(self._numbers), job))

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Do jobs without a pause between them in a block: somebody waits."""
        with self._lock:
            self._waiting += 1
            self._hurry.set()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting and not self._ending:
                    self._hurry.clear()

    def _run(self) -> None:
        while True:
            _, _, job = self._jobs.get()
            with self._lock:
                now = time.monotonic()
                pause = max(self._next - now, 0.0)
                self._next = now + pause + PAUSE
            if self._hurry.wait(pause):
                self._next = 0.0
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
        with self.hurried():
            return all(job.done.wait(max(end - time.monotonic(), 0.0)) for job in jobs)

    def end(self) -> None:
        """Start no more jobs, and wait a little for those under way: a thread must not be in a compiler when the process ends."""
        self._ending = True
        self._hurry.set()
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


def begin(job: Job, order: int = URGENT) -> None:
    """Have a job done by this process's background, unless it has begun."""
    HERE.begin(job, order)


def wait(seconds: float | None = None) -> bool:
    """Wait until all jobs that have begun are done; return False if that takes longer than ``seconds``.

    Raises
    ------
    NotReady
        no time was named, and a job took longer than ``LONGEST``
    """
    return HERE.wait(seconds)
