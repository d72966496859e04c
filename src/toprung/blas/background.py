"""Preparation of kernels in the background: selecting, compiling, loading, so that no product waits.

Selection would hold the GIL, and a thread that is in NVRTC when the program ends would crash. So both run in processes of their
own, the workers, which are killed at the end. Loading holds the GIL: a pause follows each job, in proportion to that time, unless
a product waits.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from toprung.device import cores
from toprung.errors import NotReady
from toprung.forks import in_child, renewed
from toprung.kernels import build

Made = TypeVar("Made")

SHARE = 0.02
"""Share of the program's time for which preparing may hold the GIL: a step takes 1.03 of its time at most, other costs included."""

SLOT = 5e-3
"""Seconds from the beginning of a part of a job to that of the next, whichever threads do them.

A part holds the GIL for some tenths of a millisecond, on a slow host for one. So a step of a program waits for one or two, not for
all that eight threads happen to have ready at once. The interpreter itself takes the GIL away after 5 ms only."""

FAREWELL = 5.0
"""Seconds that the interpreter waits at its end for a kernel that is being compiled."""

LONGEST = 600.0
"""Longest wait for a job, in seconds, where the caller names none: compilers take seconds, on a crowded machine minutes."""

WORKERS = min(max(cores() // 4, 1), 4)
"""Largest number of workers: a quarter of the cores, from one to four. Each takes about 70 MB."""

THREADS = 2 * WORKERS
"""Largest number of threads. Loading a kernel, or waiting for another thread's, needs no worker."""

WORKER = """
import contextlib, gc, os, pickle, sys
getattr(os, "nice", abs)(19)
sys.path[:] = pickle.load(sys.stdin.buffer)
with contextlib.suppress(Exception):  # import what selecting and compiling need before a product waits for them
    import toprung.blas.ranges
    from toprung.backends import nvrtc
    from toprung.dispatch import tuned
    from toprung.kernels.registry import families
    tuned.HERE.verifies = False
    families(), nvrtc.version()
gc.freeze()
while True:
    try:
        work, *arguments = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        made = pickle.dumps(work(*arguments))
    except Exception:
        made = pickle.dumps(None)
    sys.stdout.buffer.write(made)
    sys.stdout.flush()
"""
"""Program of a worker: calls functions that come on its standard input, at the lowest priority."""

PART, URGENT, LATER = range(3)
"""Priorities of jobs: part of a job under way, what a product waits for, what one may need soon."""


def breathe() -> None:
    """Let the program's threads have the GIL before the next part of a job, until its turn comes."""
    HERE.take_turn()


def held() -> float:
    """Return the CPU seconds of this thread, without those in compilers: for so long it may have held the GIL."""
    return time.thread_time() - build.compiling.seconds


class Job:
    """A piece of work for the background.

    Attributes
    ----------
    what : what it prepares, for an error
    begun : True once the background was given it
    done : set when it has been done, or has failed
    """

    def __init__(self, work: Callable[[], object], what: str) -> None:
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
    """Threads that do jobs in order of priority and share the workers.

    There is a thread for each job that was ever open at the same time as others, up to ``THREADS``.
    """

    def __init__(self) -> None:
        self._jobs: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._open: set[Job] = set()
        self._lock = renewed(threading.Lock())
        self._ending = False
        self._workers: list[Any] = []
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue()  # idle workers; None stands for one that is to be started
        for _ in range(WORKERS):
            self._idle.put(None)
        self._used, self._counted = 0.0, -1  # jobs begun before one is done, one of which opens the device, do not count
        self._waiting, self._hurry = 0, threading.Event()
        self._turn = -math.inf  # when the latest part of a job begins

    @property
    def cost(self) -> float:
        """Mean of the seconds for which a job held the GIL.

        Before the first job counts it is 0, or infinity while there are as many open jobs as workers.
        """
        return self._used / self._counted if self._counted > 0 else math.inf if len(self._open) >= WORKERS else 0.0

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
            if len(self._threads) < min(len(self._open), THREADS):
                thread = threading.Thread(target=self._run, name="toprung-prepares", daemon=True)
                with contextlib.suppress(RuntimeError):  # the system starts no more: those that there are do the job
                    thread.start()
                    self._threads.append(thread)
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

    def take_turn(self) -> None:
        """Wait until the next part of a job may begin; not while somebody waits for a job."""
        if not self._hurry.is_set():
            with self._lock:
                self._turn = mine = max(self._turn + SLOT, now := time.perf_counter())
            self._hurry.wait(mine - now)

    def start(self) -> None:
        """Start the workers, so that they have imported what they need when they are called; wait for none that is busy."""
        idle = list[Any]()
        try:
            with contextlib.suppress(queue.Empty):
                while not self._workers:  # to start one later holds the GIL for a millisecond or more, amid the program's steps
                    idle.append(self._idle.get_nowait())
            idle[:] = [worker or self._started() for worker in idle]
        finally:
            for worker in idle:
                self._idle.put(worker)

    def _started(self) -> Any:
        """Start a worker and return it; None if there can be none.

        There is none in a program with Python inside, while Python ends, and if the system starts no more processes.
        """
        words, pipe = [sys.executable, "-c", WORKER], subprocess.PIPE
        with self._lock, contextlib.suppress(OSError):
            if not self._ending and Path(sys.executable or "").name.startswith("python"):
                worker = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
                self._workers = [*(one for one in self._workers if one.poll() is None), worker]  # the pipes of others are closed
                pickle.dump(sys.path, cast(Any, worker.stdin))
                cast(Any, worker.stdin).flush()
                return worker
        return None

    def apart(self, work: Callable[..., Made], *arguments: Any) -> Made | None:
        """Run a function in a worker and return its result; None if there is no worker, or it raises there.

        Raises
        ------
        NotReady
            the interpreter ends, or all workers are busy for ``LONGEST`` seconds
        """
        asked, found = pickle.dumps((work, *arguments)), None
        try:
            worker = self._idle.get(timeout=0 if self._ending else LONGEST)
        except queue.Empty:
            raise NotReady(f"all processes that prepare kernels are busy for {LONGEST:g} s") from None
        try:
            if worker is None or worker.poll() is not None:  # it has ended since
                worker = self._started()
            if worker is not None:
                worker.stdin.write(asked)
                worker.stdin.flush()
                worker.stdout.peek(1)  # waits for the answer without the GIL
                self.take_turn()
                found = pickle.load(worker.stdout)
        # the worker ended, or its result names a kernel family that this process has not loaded
        except (OSError, EOFError, pickle.UnpicklingError, ImportError, AttributeError):
            worker.kill()
            worker = None
        except BaseException:  # the rest of this answer must not become the next one's
            if worker is not None:
                worker.kill()
                worker = None
            raise
        finally:
            self._idle.put(worker)
        if self._ending:
            raise NotReady("Python ends")
        return found

    def ask(self, work: Callable[..., Made], *arguments: Any) -> Made:
        """Run a function in a worker and return its result; in this process if there is none or the ending program waits for it."""
        found = None if self._ending and not build.compiling.apart else self.apart(work, *arguments)
        return work(*arguments) if found is None else found

    def _run(self) -> None:
        build.compiling.apart = self.apart
        while True:
            order, _, job = self._jobs.get()
            if job is None or self._ending:
                return
            self.take_turn()
            before, began, counts = held(), time.perf_counter(), self._counted >= 0
            try:
                job.work()
            finally:
                used = held() - before
                with self._lock:
                    self._counted = self._counted + (order != PART) if counts else max(self._counted, 0)
                    self._used += used if counts else 0.0
                    job.done.set()
                    self._open.discard(job)
            if counts:
                self._hurry.wait(max(used * len(self._threads) / SHARE - (time.perf_counter() - began), 0.0))

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all open jobs are done; return False if that takes longer than ``seconds``.

        Without ``seconds`` raise NotReady as ``settle`` does.
        """
        with self._lock:
            jobs = list(self._open)
        if seconds is None:
            return all(job.settle() for job in jobs)
        end = time.monotonic() + seconds
        with self.hurried():
            return all(job.done.wait(max(end - time.monotonic(), 0.0)) for job in jobs)

    def end(self) -> None:
        """Start no more jobs, and wait a little for those under way: a thread must not be in a compiler when the process ends."""
        farewell = time.monotonic() + FAREWELL
        with self._lock:
            self._ending = True
            self._hurry.set()
            self._open.clear()  # what is not done by then never will be
            for worker in self._workers:
                worker.kill()
                worker.wait(FAREWELL)
        for _ in self._threads:
            self._jobs.put((-1, next(self._numbers), None))
        for thread in self._threads:
            thread.join(max(farewell - time.monotonic(), 0.0))
        for worker in self._workers:
            with contextlib.suppress(OSError):  # a request that is still buffered is dropped
                worker.stdin.close()
            worker.stdout.close()


HERE = Background()
"""This process's background."""


@in_child
def _of_parent() -> object:
    """Return the parent's background, which a child replaces: it has none of its threads."""
    global HERE
    theirs, HERE = HERE, Background()
    return theirs


atexit.register(lambda: HERE.end())
