"""Interface between the search and the devices that measure, small enough for a cluster to stand behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toprung.device import Device
from toprung.errors import ToprungError
from toprung.store import Machine
from toprung.tune.trial import Outcome, Trial


class LaneLost(ToprungError):
    """Loss of a lane: its device or worker is gone, and the shape it measured goes to another lane."""


class Lane(Protocol):
    """One device that runs one trial at a time; for one thread.

    Attributes
    ----------
    name : display name, unique among lanes
    machine : machine under which its outcomes are stored
    """

    name: str
    device: Device
    machine: Machine

    def start(self) -> str:
        """Open the device; return the fingerprint to compile for, empty if only the worker should. Raises NoDevice, LaneLost."""

    def run(self, trial: Trial) -> Outcome:
        """Measure a trial and wait for its outcome. Raises NoDevice or LaneLost if the device or its worker is gone."""

    def close(self) -> None:
        """Give the device back, from any thread; a trial under way ends with an error."""


class Executor(Protocol):
    """A set of lanes."""

    def lanes(self) -> Sequence[Lane]:
        """Return a lane for every device that trials can be sent to."""

    def close(self) -> None:
        """End every lane and process."""
