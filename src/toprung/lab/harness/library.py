"""The library itself as a competitor, without arrays: device memory in, device memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from toprung.device import Device
from toprung.dispatch.heuristic import select_own
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, Selection
from toprung.execute.executable import Executable
from toprung.execute.executor import executor_of
from toprung.kernels.base import Run
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice, Promise
from toprung.oracle.check import GUARD
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem


class BoundProduct(BoundOnDevice):
    """An executable bound to operands in device memory."""

    def __init__(self, placed: OnDevice, executable: Executable, offset: int = GUARD, launch: Run | None = None) -> None:
        problem: Any = placed.operands.problem
        self.executable = executable
        a, b, c = (placed.buffers[m.name].handle for m in problem.matrices)
        self._launcher = launch = launch or executable.starter()
        alpha, beta = float(problem.alpha), float(problem.beta)
        super().__init__(placed, lambda: launch(a, offset, b, offset, c, offset, alpha, beta, None))

    def elsewhere(self, placed: OnDevice) -> BoundProduct:
        """Return the executable bound to other operands, for the same thread: both share one launcher."""
        return BoundProduct(placed, self.executable, launch=self._launcher)


class Toprung:
    """The library as a competitor, with kernels of its own or with a given candidate.

    Its ``promise`` is the precision of the problem prepared last: ``"auto"`` is fp32 where fp32x is not supported or is slower.
    """

    title = "toprung"

    def __init__(
        self, name: str = "toprung", candidate: Candidate | None = None, precision: str = "fp32", tuned: bool = True
    ) -> None:
        self.name, self._candidate, self._precision, self._tuned, self.promise = name, candidate, precision, tuned, Promise()
        self._last: Selection | None = None

    def absent(self, device: Device) -> str:
        """Return no reason: the library is always there."""
        return ""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        """Select a kernel and bind it to the operands."""
        session, desc = placed.session, placed.operands.problem.desc
        given = self._candidate or (None if self._tuned else select_own(session.device, desc))
        if given:
            made = Executable.of(session, desc, given)
        else:
            made = executor_of(session).product(desc, own=True, precision=self._precision)
        self._last, self.promise = made.selections[desc], Promise(made.precision)
        return BoundProduct(placed, made)

    def describe(self, device: Device) -> dict[str, Any]:
        """Return the kernel, tile and switches of the problem prepared last, as JSON-ready data."""
        last = self._last
        encoded = last.candidate.encode() if last else {"kernel": "", "tile": {}, "options": {}}
        return {
            "kind": "library", "name": self.name, "number": 0, "idea": "the library, kernels of its own", "variant": "",
            **encoded, "why": last.why if last else "",
            "precision": self.promise.precision, "deterministic": True, "note": "",
        }  # fmt: skip


WAYS: Mapping[str, Callable[[], Toprung]] = MappingProxyType(
    {
        Toprung.title: Toprung,
        "toprung_auto": lambda: Toprung("toprung_auto", precision="auto"),
        "toprung_untuned": lambda: Toprung("toprung_untuned", tuned=False),
    }
)
"""Variants of the library that can be requested as competitors, by name."""


def chosen(device: Device, problem: Problem) -> Selection:
    """Return the selection that the library would run for a problem."""
    return select(device, problem.desc)
