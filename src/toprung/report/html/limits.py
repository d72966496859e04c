"""Limits of each measured rung: its machine code, compiled here once, and the bound that follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toprung.backends import nvrtc
from toprung.errors import ToprungError
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.levels import Bound, bound
from toprung.lab.explain import bounded, compiled, work_of
from toprung.lab.harness.measure import Measurement
from toprung.lab.rung import Rung, rung
from toprung.lab.sass.machine_code import MachineCode
from toprung.oracle.problems import problem_of
from toprung.report.html.gather import Gathered
from toprung.tile import Tile

Says = Callable[[str], None]


@dataclass
class Limits:
    """Machine code and bounds of the rungs of one report, each found once.

    Attributes
    ----------
    gathered : whose rungs
    compiles : whether anything may be compiled
    says : is told what is being compiled
    figures : what the device can do; None where nobody knows
    notes : why something is missing, a sentence each, in the order it was noticed
    """

    gathered: Gathered
    compiles: bool = True
    says: Says = lambda text: None
    notes: dict[str, None] = field(default_factory=dict)
    figures: Figures | None = field(init=False)
    _codes: dict[str, MachineCode | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.compiles and (missing := nvrtc.missing()):
            self.compiles, self.notes[f"machine code was not read: {missing}"] = False, None
        self.figures = self.gathered.figures()
        self._device = self.gathered.device()
        self._stored = {
            _key(b["rung"], b["variant"], b["problem"]): b for r in self.gathered.of("bounds") for b in r.content["bounds"]
        }

    def rung_of(self, m: Measurement) -> Rung | None:
        """The rung that was measured, if this toprung still has it."""
        try:
            return rung(m.competitor["name"])
        except ToprungError:
            self.notes[f"this toprung has no rung {m.competitor['name']}: it is shown as far as its record tells"] = None
            return None

    def code(self, m: Measurement, backend: str) -> MachineCode | None:
        """The machine code of what was measured through CUDA; None where it cannot be had."""
        if not self.compiles or backend != "cuda" or self._device is None or (of := self.rung_of(m)) is None:
            return None
        who, timed = m.competitor, self._device.runtime.partition("NVRTC ")[2]
        key = json.dumps([who["name"], who["tile"], who["options"]])
        if key not in self._codes:
            self.says(f"{who['name']} {who['variant']}".rstrip())
            try:
                self._codes[key], note = compiled(of, Tile(**who["tile"]), who["options"], self._device)
            except (ValueError, TypeError) as error:  # an older record's tile or switches
                self._codes[key], note = None, f"not compiled: {error}"
            if note:
                self.notes[f"{who['name']}: {note.splitlines()[0]}"] = None
            elif timed not in ("", nvrtc.version()):
                self.notes[f"NVRTC {timed} compiled what was timed, {nvrtc.version()} the machine code that is shown"] = None
        return self._codes[key]

    def bound(self, m: Measurement, backend: str) -> Bound | None:
        """Return the bound of what was measured; None where the model or the figures do not tell."""
        if self.figures is None or (of := self.rung_of(m)) is None or not bounded(of):
            return None
        if (code := self.code(m, backend)) is None or self._device is None:
            return None
        try:
            problem, tile = problem_of(m.problem), Tile(**m.competitor["tile"])
            return bound(work_of(of, tile, m.competitor["options"], problem, code, self._device), self.figures)
        except (ToprungError, ValueError, TypeError, KeyError):
            return None

    def ceiling(self, m: Measurement, backend: str) -> tuple[float, str] | None:
        """The bound in the unit of the measurement, and what limits it: computed, or as ``toprung explain --json`` stored it."""
        if backend != "cuda":
            return None
        if found := self.bound(m, backend):
            if isinstance(found.seconds, Unknown) or not found.seconds or found.limiter is None:
                return None
            return m.figure * m.median / found.seconds, found.limiter.name
        stored = self._stored.get(_key(m.competitor["name"], m.competitor["variant"], m.problem))
        if stored is None or stored["bound"] is None or stored["tile"] != m.competitor["tile"]:
            return None
        return float(stored["bound"]), str(stored["limiter"])


def _key(name: str, variant: str, problem: Mapping[str, Any]) -> tuple[Any, ...]:
    return (name, variant, *(problem.get(k) for k in ("M", "N", "K", "trans", "batch")))
