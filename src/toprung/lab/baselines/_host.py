"""Base of peers on the host: they work in the host's own arrays and are timed with the host's clock."""

from __future__ import annotations

from collections.abc import Callable

from toprung.lab.competitor import BoundCompetitor, HostClock
from toprung.oracle.check import Operands, view
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import F32

Stacks = tuple[F32, F32, F32]
"""op(A), op(B) and C, batch first, as views."""


class OnHost(BoundCompetitor):
    """A competitor on the host; ``bind`` returns a function that computes into an output's backing array."""

    def __init__(self, operands: Operands, bind: Callable[[F32], Callable[[], object]]) -> None:
        self.clock, self._old = HostClock(), operands.flat[operands.problem.output.name]
        self._flat = self._old.copy()
        self._call = bind(self._flat)

    def reset(self) -> None:
        self._flat[...] = self._old

    def run(self) -> None:
        self._call()

    def fetch(self) -> F32:
        return self._flat


class BoundOnHost(OnHost):
    """A matrix product on the host; ``bind`` returns a function of operands' views that computes into C."""

    def __init__(self, operands: Operands, problem: Gemm, bind: Callable[[Stacks], Callable[[], object]]) -> None:
        out = problem.output
        super().__init__(operands, lambda flat: bind(problem.stacks({**operands.matrices, out.name: view(out, flat)})))
