"""What takes part in a comparison, ours or somebody else's: something that can be prepared for operands, run, timed, fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from toprung.backends.base import Session
from toprung.build import Compiled
from toprung.check import GUARD, Operands
from toprung.problem import F32
from toprung.routines.base import routine


class Prepared(Protocol):
    """A competitor with its operands in place."""

    def reset(self) -> None:
        """Put the output back to what it was before the first run."""

    def time(self, calls: int) -> float:
        """Run ``calls`` times in a row and return the seconds a call took, on the device's clock where it has one."""

    def helper_time(self, calls: int) -> float:
        """The same for the part of a call that only lays out operands; 0 where there is none."""

    def fetch(self) -> F32:
        """The output's backing array as it is now."""


@dataclass(frozen=True)
class Promise:
    """What a competitor says of itself.

    Attributes
    ----------
    precision : ``fp32`` (IEEE single, fused multiply-adds), ``fp32x`` (as accurate on matrix units), ``tf32``, ``fp16``, …
    deterministic : the same call gives the same bits
    """

    precision: str = "fp32"
    deterministic: bool = True


class OnDevice:
    """Operands in a device's memory, guards and all; shared by every competitor of a session."""

    def __init__(self, operands: Operands, session: Session) -> None:
        self.operands, self.session = operands, session
        self.buffers, self.parts = {}, {}
        for m in operands.problem.matrices:
            flat = operands.flat[m.name]
            self.buffers[m.name] = session.allocate(flat.nbytes)
            self.parts[m.name] = self.buffers[m.name].part(4 * GUARD, m.nbytes)
            session.upload(self.buffers[m.name], flat)

    def reset(self) -> None:
        """Put the output back to what it was."""
        name = self.operands.problem.output.name
        self.session.upload(self.buffers[name], self.operands.flat[name])

    def fetch(self, name: str | None = None) -> F32:
        """An operand's backing array as it is now; by default the output's."""
        name = name or self.operands.problem.output.name
        flat = np.empty_like(self.operands.flat[name])
        self.session.download(self.buffers[name], flat)
        return flat


class PreparedRung:
    """A rung bound to operands."""

    def __init__(self, compiled: Compiled, placed: OnDevice) -> None:
        self._placed, self._session = placed, placed.session
        steps = routine(compiled.rung.routine).steps(compiled, placed.operands.problem, placed.parts, placed.session)
        self._launches = [s.launch for s in steps]
        self._helpers = [s.launch for s in steps if s.helper]
        self.names = [s.name for s in steps]
        self.reset, self.fetch = placed.reset, placed.fetch

    def time(self, calls: int) -> float:
        """Device seconds a call: marks around a loop of calls."""
        start = self._session.mark()
        for _ in range(calls):
            for launch in self._launches:
                launch()
        return self._session.seconds(start, self._session.mark()) / calls

    def helper_time(self, calls: int) -> float:
        """The same for the pads, transposes and crops alone."""
        if not self._helpers:
            return 0.0
        start = self._session.mark()
        for _ in range(calls):
            for launch in self._helpers:
                launch()
        return self._session.seconds(start, self._session.mark()) / calls
