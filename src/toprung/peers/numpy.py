"""NumPy's BLAS: what a Python program on a CPU has without us."""

from __future__ import annotations

import time

import numpy as np

from toprung.backends.base import Session
from toprung.check import Operands, view
from toprung.competitor import Prepared, Promise
from toprung.device import Device
from toprung.problem import F32


class NumPyPeer:
    """``numpy.matmul`` on host memory, with as many threads as its BLAS takes."""

    name = "numpy"
    title = "NumPy"
    promise = Promise()

    def absent(self, device: Device) -> str:
        """Always there: toprung needs NumPy itself."""
        return ""

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        """Of a CPU."""
        return device.kind == "cpu" and routine == "gemm"

    def prepare(self, operands: Operands, session: Session) -> Prepared:
        """Take the host's own arrays."""
        return _Prepared(operands)


class _Prepared:
    def __init__(self, operands: Operands) -> None:
        scalars, self._operands = operands.problem.describe(), operands
        self._alpha, self._beta = np.float32(scalars["alpha"]), np.float32(scalars["beta"])
        self._output = operands.problem.output
        self.reset()

    def reset(self) -> None:
        self._flat = self._operands.flat[self._output.name].copy()
        self._c = view(self._output, self._flat)

    def time(self, calls: int) -> float:
        a, b, c = (self._operands.matrices["A"], self._operands.matrices["B"], self._c)
        start = time.perf_counter()
        for _ in range(calls):
            if self._beta == 0 and self._alpha == 1:
                np.matmul(a, b, out=c)
            else:
                product = self._alpha * (a @ b) if self._alpha else np.zeros_like(c)
                c[...] = product + self._beta * c if self._beta else product
        return (time.perf_counter() - start) / calls

    def helper_time(self, calls: int) -> float:
        return 0.0

    def fetch(self) -> F32:
        return self._flat


def peer() -> NumPyPeer:
    """This module's peer."""
    return NumPyPeer()
