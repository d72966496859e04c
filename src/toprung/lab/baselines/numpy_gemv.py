"""NumPy's BLAS on a matrix and a vector."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from toprung.device import Device
from toprung.errors import Unsupported
from toprung.lab.baselines import Peer
from toprung.lab.baselines._host import OnHost
from toprung.lab.baselines.numpy import multiply
from toprung.lab.competitor import BoundCompetitor
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
        a, x = placed.operands.matrices["A"], placed.operands.matrices["x"][:, 0]
        scalars = np.float32(problem.alpha), np.float32(problem.beta)

        def bind(flat: F32) -> Callable[[], object]:
            y = view(problem.output, flat)[:, 0]
            return functools.partial(multiply, a if problem.trans == "N" else a.T, x, y, *scalars)

        return OnHost(placed.operands, bind)


PEER = NumPyGemvPeer()
