"""Work for the CPU's cores while a device measures: binaries of what comes next, and the order of what comes after that."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context

from toprung import hopper, hopper_fp32
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.blas import ffma, fp32x
from toprung.blas.choice import FFMA, Choice
from toprung.blas.kernel import kernel, kernel_names
from toprung.blas.problems import call_of
from toprung.build import keep, rung_source
from toprung.device import Device
from toprung.errors import ToprungError
from toprung.problem import Problem
from toprung.tune.worker import outlive_nobody

RANKED = 600
"""So many of the most promising choices come back from another process; whoever needs more ranks by himself."""


MOST = 32
"""Processes that compile at most: one device does not measure faster than they are."""


def cores() -> int:
    """Those this process may use."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(mine, MOST)


def source_of(device: Device, choice: Choice) -> Source | None:
    """The text of a choice's kernel that does the work; None where there is none to compile."""
    options = dict(choice.options)
    if choice.kernel == fp32x.FP32X:
        return hopper.product_source(fp32x.way_of(choice.tile, options).variant)
    if choice.kernel == FFMA:
        return hopper_fp32.product_source(ffma.variant_of(choice.tile, options))
    if choice.kernel not in kernel_names() or choice.tile is None:
        return None
    record, tile = kernel(choice.kernel), replace(choice.tile, SPLIT_K=None)
    return rung_source(record, tile, record.options(device, options))


def compile_one(source: Source, arch: str, fingerprint: str) -> str:
    """In a process of its own: one binary into the cache; returns what is wrong with it."""
    try:
        keep(source, fingerprint, nvrtc.compile_cubin(source, arch).code)
    except ToprungError as error:
        return str(error)
    return ""


def rank_one(device: Device, problem: Problem) -> list[Choice]:
    """In a process of its own: the most promising choices for a problem."""
    from toprung.tune.space import CallSpace

    return list(islice(CallSpace(device, call_of(problem)).ranked(), RANKED))


class Compiler:
    """A process for each core where the device is not the CPU itself; else nothing is done ahead, so that nothing competes."""

    def __init__(self, device: Device, workers: int | None = None) -> None:
        self._device = replace(device, handle=None)
        self.width = (workers or cores()) if device.kind == "gpu" else 1
        self._pool: ProcessPoolExecutor | None = None
        if device.kind == "gpu":
            self._pool = ProcessPoolExecutor(self.width, get_context("spawn"), _behind)

    def ahead(self, choice: Choice, fingerprint: str) -> Future[str] | None:
        """Begin to compile; None where the worker does it itself."""
        if self._pool is None or self._device.backend != "cuda" or not fingerprint:
            return None
        try:
            source = source_of(self._device, choice)
        except ToprungError:
            return None  # the worker says what is wrong
        if source is None:
            return None
        try:
            return self._pool.submit(compile_one, source, self._device.arch, fingerprint)
        except (BrokenProcessPool, RuntimeError):
            return None  # a compiler that crashed: the worker finds out by itself, where a crash is recorded

    def rank(self, problem: Problem) -> Future[list[Choice]] | None:
        """Begin to order a problem's choices."""
        try:
            return self._pool.submit(rank_one, self._device, problem) if self._pool else None
        except (BrokenProcessPool, RuntimeError):
            return None

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _behind() -> None:
    """Ctrl-C is for the parent, and so are the cores: a host that waits for one launches late, and that would be measured."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=outlive_nobody, args=(os.getppid(),), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(15)
