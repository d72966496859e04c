"""What the search needs of a place that measures: a small interface, so that a cluster can stand behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toprung.device import Device
from toprung.errors import ToprungError
from toprung.store import Machine
from toprung.tune.trial import Outcome, Trial


class LaneLost(ToprungError):
    """A place that measured is gone: what it was at goes to another."""


class Lane(Protocol):
    """One device that does one trial at a time; for one thread.

    Attributes
    ----------
    name : as people tell it from others
    machine : whose entries its outcomes are
    """

    name: str
    device: Device
    machine: Machine

    def start(self) -> str:
        """Open the device; returns the fingerprint to compile for, empty where nobody else should. Raises NoDevice, LaneLost."""

    def run(self, trial: Trial) -> Outcome:
        """Measure; waits. Raises NoDevice or LaneLost if the place is gone."""

    def close(self) -> None:
        """Give the device back, from any thread; a trial under way ends with an error."""


class Executor(Protocol):
    """Some lanes."""

    def lanes(self) -> Sequence[Lane]:
        """Every device that trials can be sent to."""

    def close(self) -> None:
        """End everything."""
