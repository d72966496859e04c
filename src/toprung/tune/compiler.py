"""Background processes that compile the next candidates and rank later problems while a device measures."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context

from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.device import Device, cores
from toprung.dispatch.selection import Candidate
from toprung.errors import ToprungError, let_through
from toprung.gemm.desc import Desc
from toprung.kernels.build import is_kept, keep, sources_of
from toprung.oracle.problem import Problem
from toprung.tune.worker import outlive_nobody

RANKED = 600
"""Number of most promising candidates that ``rank_one`` returns; a caller that needs more ranks the space itself."""


COMPILING = 300.0
"""Seconds to wait for binaries or a ranking from background processes before the worker compiles, or this process ranks."""

MOST = 32
"""Largest number of compiling processes: one device cannot measure faster than they compile."""


def compile_one(source: Source, arch: str, fingerprint: str) -> str:
    """Compile one binary into the cache; return the error message, empty on success. Runs in a process of its own."""
    try:
        if not is_kept(source, fingerprint):
            keep(source, fingerprint, nvrtc.compile_cubin(source, arch).code)
    except ToprungError as error:
        return str(error)
    return ""


def compile_all(sources: Sequence[Source], arch: str, fingerprint: str) -> str:
    """Compile what a product's launches need, up to the first that does not compile; return its message."""
    return next(filter(None, (compile_one(source, arch, fingerprint) for source in sources)), "")


def rank_one(device: Device, problem: Problem) -> list[Candidate]:
    """Return the ``RANKED`` most promising candidates for a problem, best first. Runs in a process of its own."""
    from toprung.tune.space import CallSpace

    return list(islice(CallSpace(device, problem.desc).ranked(), RANKED))


class Compiler:
    """A pool of background processes, one per core, for a GPU; for a CPU device there is none, so that nothing competes with it."""

    def __init__(self, device: Device, workers: int | None = None) -> None:
        self._device = replace(device, handle=None)
        self.width = min(workers or cores(), MOST) if device.kind == "gpu" else 1
        self._pool: ProcessPoolExecutor | None = None
        if device.kind == "gpu":
            self._pool = ProcessPoolExecutor(self.width, get_context("spawn"), _behind)

    def ahead(self, candidate: Candidate, desc: Desc, fingerprint: str) -> Future[str] | None:
        """Start compiling a product's candidate; return None where the worker has to compile it."""
        if self._pool is None or self._device.backend != "cuda" or not fingerprint:
            return None
        try:
            sources = sources_of(candidate.family, self._device, desc, candidate.config)
        except Exception as error:  # a family from outside may query the device while it compiles; only the worker has one
            let_through(error)
            return None
        try:
            return self._pool.submit(compile_all, sources, self._device.arch, fingerprint) if sources else None
        except (BrokenProcessPool, RuntimeError):
            return None  # a compiler that crashed: the worker finds out by itself, where a crash is recorded

    def rank(self, problem: Problem) -> Future[list[Candidate]] | None:
        """Start ranking a problem's candidates; return None without a pool."""
        try:
            return self._pool.submit(rank_one, self._device, problem) if self._pool else None
        except (BrokenProcessPool, RuntimeError):
            return None

    def close(self) -> None:
        """Shut the processes down without waiting for them."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _behind() -> None:
    """Initialise a process of the pool: ignore Ctrl-C, end with the parent, run at low priority.

    A measuring host that waits for a core launches late, and the delay would be measured.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=outlive_nobody, args=(os.getppid(),), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(15)
