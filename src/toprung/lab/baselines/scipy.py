"""SciPy's BLAS: ``scipy.linalg.blas.sgemm``, which SciPy brings in a library of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from toprung.device import Device
from toprung.lab.baselines import Peer
from toprung.lab.baselines._host import BoundOnHost, Stacks
from toprung.lab.competitor import BoundCompetitor
from toprung.oracle.placed import OnDevice


class SciPyPeer(Peer):
    """BLAS is column-major: it gets the transposes, Cᵀ = op(B)ᵀ·op(A)ᵀ, which are views."""

    name = "scipy"
    title = "SciPy BLAS"

    def absent(self, device: Device) -> str:
        # how to get SciPy; empty if it is installed
        return "" if importlib.util.find_spec("scipy") else "SciPy is not installed; pip install scipy"

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        # take the host's own arrays; leading dimensions beyond the width cost SciPy copies, as they cost its users
        from scipy.linalg.blas import sgemm

        problem = self.product(placed, batch=False, zero=False)
        alpha, beta, (trans_a, trans_b) = problem.alpha, problem.beta, (letter == "T" for letter in problem.trans)

        def bind(stacks: Stacks) -> Callable[[], object]:
            a, b, c = (s[0] for s in stacks)
            # views in column-major order of what is stored
            left, right, out = b if trans_b else b.T, a if trans_a else a.T, c.T

            def call() -> None:
                result = sgemm(alpha, left, right, beta, out, trans_b, trans_a, overwrite_c=True)
                if result.base is not out and result is not out:
                    out[...] = result

            return call

        return BoundOnHost(placed.operands, problem, bind)


PEER = SciPyPeer()
