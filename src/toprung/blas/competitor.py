"""The library itself as a competitor, at the engine's level: device memory in, device memory out."""

from __future__ import annotations

from typing import Any

from toprung.blas.choose import Choice, choose
from toprung.blas.engine import Executable, prepare
from toprung.blas.problems import call_of
from toprung.check import GUARD
from toprung.competitor import OnDevice, Prepared, PreparedOnDevice, Promise
from toprung.device import Device
from toprung.problem import Problem


class Bound(PreparedOnDevice):
    """An executable with its operands in place."""

    def __init__(self, placed: OnDevice, executable: Executable, offset: int = GUARD) -> None:
        problem: Any = placed.operands.problem
        self.executable = executable
        a, b, c = (placed.buffers[m.name].handle for m in problem.matrices)
        launch, alpha, beta = executable.launcher(), float(problem.alpha), float(problem.beta)
        super().__init__(placed, lambda: launch(a, offset, b, offset, c, offset, alpha, beta, None))


class Toprung:
    """The library with kernels of its own, or with a choice that is given."""

    title = "toprung"

    def __init__(self, name: str = "toprung", choice: Choice | None = None) -> None:
        self.name, self._choice, self.promise = name, choice, Promise()
        self._last: Choice | None = None

    def absent(self, device: Device) -> str:
        """Always there."""
        return ""

    def prepare(self, placed: OnDevice) -> Prepared:
        """Choose and bind."""
        session, call = placed.session, call_of(placed.operands.problem)
        made = Executable(session, call, self._choice, "fp32") if self._choice else prepare(session, call, own=True)
        self._last = made.choice
        return Bound(placed, made)

    def describe(self, device: Device) -> dict[str, Any]:
        """The kernel, tile and switches of the problem prepared last."""
        choice = self._last
        return {
            "kind": "library", "name": self.name, "number": 0, "idea": "the library, kernels of its own", "variant": "",
            "kernel": choice.kernel if choice else "", "tile": choice.tile.given() if choice and choice.tile else {},
            "options": dict(choice.options) if choice else {}, "why": choice.why if choice else "", "precision": "fp32",
            "deterministic": True, "note": "",
        }  # fmt: skip


def chosen(device: Device, problem: Problem) -> Choice:
    """What the library would run for a problem."""
    return choose(device, call_of(problem))
