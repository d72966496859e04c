"""NumPy's BLAS: what a Python program on a CPU has without us."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toprung.device import Device
from toprung.lab.baselines import Peer
from toprung.lab.baselines._host import BoundOnHost, Stacks
from toprung.lab.competitor import BoundCompetitor
from toprung.oracle.placed import OnDevice


class NumPyPeer(Peer):
    """``numpy.matmul`` on host memory, with as many threads as its BLAS takes."""

    name = "numpy"
    title = "NumPy"

    def absent(self, device: Device) -> str:
        # always there: toprung needs NumPy itself
        return ""

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        return device.kind == "cpu" and routine == "gemm"

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        problem = self.product(placed)
        alpha, beta = np.float32(problem.alpha), np.float32(problem.beta)

        def bind(stacks: Stacks) -> Callable[[], object]:
            a, b, c = stacks if problem.batch > 1 else (s[0] for s in stacks)

            def call() -> None:
                if alpha == 1 and beta == 0:
                    np.matmul(a, b, out=c)
                    return
                product = alpha * (a @ b) if alpha else np.zeros_like(c)
                c[...] = product + beta * c if beta else product

            return call

        return BoundOnHost(placed.operands, problem, bind)


def peer() -> NumPyPeer:
    """This module's peer."""
    return NumPyPeer()
