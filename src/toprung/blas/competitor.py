"""The library itself as a competitor, at the engine's level: device memory in, device memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from toprung.blas.choice import Choice
from toprung.blas.choose import by_model, choose
from toprung.blas.engine import Executable, prepare
from toprung.blas.kernel import Run
from toprung.blas.problems import call_of
from toprung.check import GUARD
from toprung.competitor import OnDevice, Prepared, PreparedOnDevice, Promise
from toprung.device import Device
from toprung.problem import Problem


class Bound(PreparedOnDevice):
    """An executable with its operands in place."""

    def __init__(self, placed: OnDevice, executable: Executable, offset: int = GUARD, launch: Run | None = None) -> None:
        problem: Any = placed.operands.problem
        self.executable = executable
        a, b, c = (placed.buffers[m.name].handle for m in problem.matrices)
        self._launcher = launch = launch or executable.launcher()
        alpha, beta = float(problem.alpha), float(problem.beta)
        super().__init__(placed, lambda: launch(a, offset, b, offset, c, offset, alpha, beta, None))

    def elsewhere(self, placed: OnDevice) -> Bound:
        """The same on other operands, for the same thread: what was laid out serves both."""
        return Bound(placed, self.executable, launch=self._launcher)


class Toprung:
    """The library with kernels of its own, or with a choice that is given.

    What it promises is the path it took for the problem prepared last: ``"auto"`` is fp32 where fp32x cannot be had or is slower.
    """

    title = "toprung"

    def __init__(self, name: str = "toprung", choice: Choice | None = None, precision: str = "fp32", tuned: bool = True) -> None:
        self.name, self._choice, self._precision, self._tuned, self.promise = name, choice, precision, tuned, Promise()
        self._last: Choice | None = None

    def absent(self, device: Device) -> str:
        """Always there."""
        return ""

    def prepare(self, placed: OnDevice) -> Prepared:
        """Choose and bind."""
        session, call = placed.session, call_of(placed.operands.problem)
        given = self._choice or (None if self._tuned else by_model(session.device, call))
        made = Executable(session, call, given, "fp32") if given else prepare(session, call, own=True, precision=self._precision)
        self._last, self.promise = made.choice, Promise(made.precision)
        return Bound(placed, made)

    def describe(self, device: Device) -> dict[str, Any]:
        """The kernel, tile and switches of the problem prepared last."""
        choice = self._last
        return {
            "kind": "library", "name": self.name, "number": 0, "idea": "the library, kernels of its own", "variant": "",
            "kernel": choice.kernel if choice else "", "tile": choice.tile.given() if choice and choice.tile else {},
            "options": dict(choice.options) if choice else {}, "why": choice.why if choice else "",
            "precision": self.promise.precision, "deterministic": True, "note": "",
        }  # fmt: skip


WAYS: Mapping[str, Callable[[], Toprung]] = MappingProxyType(
    {
        Toprung.title: Toprung,
        "toprung_auto": lambda: Toprung("toprung_auto", precision="auto"),
        "toprung_untuned": lambda: Toprung("toprung_untuned", tuned=False),
    }
)
"""The library's ways that can be asked for by name."""


def chosen(device: Device, problem: Problem) -> Choice:
    """What the library would run for a problem."""
    return choose(device, call_of(problem))
