"""NumPy's BLAS: what a Python program on a CPU has without us."""

from __future__ import annotations

import ctypes
import functools
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from toprung.device import Device
from toprung.lab.baselines import Peer
from toprung.lab.baselines._host import BoundOnHost, Stacks
from toprung.lab.competitor import BoundCompetitor
from toprung.oracle.check import Operands
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import F32

LONG = 4e9
"""Operations of a product from which it takes so long that threads that wait for each other matter little."""

LOOKED, OFTEN = 0.005, 0.5
"""Seconds of a loop that is timed for each number of threads, and after which it is done again."""


@functools.cache
def openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return the functions of NumPy's OpenBLAS that get and set its number of threads; None where it has another BLAS."""
    try:
        loaded = re.findall(r"\S*openblas\S*", Path("/proc/self/maps").read_text("utf-8"))
    except OSError:
        return None
    for library in map(ctypes.CDLL, dict.fromkeys(loaded)):
        for before, behind in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
            found = [getattr(library, f"{before}openblas_{verb}_num_threads{behind}", None) for verb in ("get", "set")]
            if None not in found:
                return found[0], found[1]  # type: ignore[return-value]
    return None


def multiply(a: F32, b: F32, c: F32, alpha: np.float32, beta: np.float32) -> None:
    """Compute c = α·a·b + β·c."""
    if alpha == 1 and beta == 0:
        np.matmul(a, b, out=c)
        return
    product = alpha * (a @ b) if alpha else np.zeros_like(c)
    c[...] = product + beta * c if beta else product


class BoundNumPy(BoundOnHost):
    """NumPy's product in as many threads as OpenBLAS takes, or in one where that is faster.

    Where other programs use the cores, OpenBLAS's threads wait for each other, and a product takes a hundred times as long.
    """

    def __init__(self, operands: Operands, problem: Gemm, bind: Callable[[Stacks], Callable[[], object]], peer: NumPyPeer) -> None:
        super().__init__(operands, problem, bind)
        self._peer, self._blas, self._looked = peer, openblas() if problem.flops < LONG else None, -math.inf

    def time(self, calls: int, in_flight: Callable[[], None] = lambda: None) -> float:
        if self._blas is None:
            return super().time(calls, in_flight)
        get, put = self._blas
        most = get()
        try:
            if most > 1 and time.perf_counter() > self._looked + OFTEN:
                before = self._flat.copy()
                with np.errstate(all="ignore"):  # repeated calls add to C until it overflows
                    self._peer.threads = min((most, 1), key=lambda count: self._seconds(put, count))
                self._flat[...], self._looked = before, time.perf_counter()
            put(self._peer.threads or most)
            return super().time(calls, in_flight)
        finally:
            put(most)

    def _seconds(self, put: Callable[[int], None], threads: int) -> float:
        """Return the mean seconds of calls with a number of threads, after a first one that starts them."""
        put(threads)
        self.run()
        calls, begin = 0, time.perf_counter()
        while (passed := time.perf_counter() - begin) < LOOKED or not calls:
            self.run()
            calls += 1
        return passed / calls


class NumPyPeer(Peer):
    """``numpy.matmul`` on host memory, in all of its BLAS's threads, or in one where other programs use the cores.

    ``threads``: those of the product timed last; 0: as many as its BLAS takes.
    """

    name = "numpy"
    title = "NumPy"
    threads = 0

    def absent(self, device: Device) -> str:
        # always there: toprung needs NumPy itself
        return ""

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        return device.kind == "cpu" and routine == "gemm"

    def describe(self, device: Device) -> dict[str, Any]:
        return {**super().describe(device), **({"threads": 1} if self.threads == 1 else {})}

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        problem = self.product(placed)

        def bind(stacks: Stacks) -> Callable[[], object]:
            a, b, c = stacks if problem.batch > 1 else (s[0] for s in stacks)
            return functools.partial(multiply, a, b, c, np.float32(problem.alpha), np.float32(problem.beta))

        self.threads = 0
        return BoundNumPy(placed.operands, problem, bind, self)


PEER = NumPyPeer()
