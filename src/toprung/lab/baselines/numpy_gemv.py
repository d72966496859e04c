"""NumPy's BLAS on a matrix and a vector."""

from __future__ import annotations

import numpy as np

from toprung.device import Device
from toprung.errors import Unsupported
from toprung.lab.baselines import Peer
from toprung.lab.competitor import BoundCompetitor, HostClock
from toprung.oracle.check import view
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import F32


class NumPyGemvPeer(Peer):
    """``numpy.matmul`` with a vector, on host memory."""

    name = "numpy_gemv"
    title = "NumPy"
    kinds = ()  # gemv has no bench of its own

    def absent(self, device: Device) -> str:
        # always there: toprung needs NumPy itself
        return ""

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        return device.kind == "cpu" and routine == "gemv"

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        problem = placed.operands.problem
        if not isinstance(problem, Gemv):
            raise Unsupported(f"{self.name} multiplies a matrix and a vector; {problem} is another routine's")
        return _Bound(placed, problem)


class _Bound(BoundCompetitor):
    def __init__(self, placed: OnDevice, problem: Gemv) -> None:
        self.clock, self._old = HostClock(), placed.operands.flat[problem.output.name]
        self._flat = self._old.copy()
        matrices = placed.operands.matrices
        self._a = matrices["A"] if problem.trans == "N" else matrices["A"].T
        self._x, self._y = matrices["x"][:, 0], view(problem.output, self._flat)[:, 0]
        self._alpha, self._beta = np.float32(problem.alpha), np.float32(problem.beta)

    def reset(self) -> None:
        self._flat[...] = self._old

    def run(self) -> None:
        if self._alpha == 1 and self._beta == 0:
            np.matmul(self._a, self._x, out=self._y)
            return
        product = self._alpha * (self._a @ self._x) if self._alpha else np.zeros_like(self._y)
        self._y[...] = product + self._beta * self._y if self._beta else product

    def fetch(self) -> F32:
        return self._flat


def peer() -> NumPyGemvPeer:
    """This module's peer."""
    return NumPyGemvPeer()
