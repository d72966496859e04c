"""This machine's devices, a process each."""

from __future__ import annotations

from collections.abc import Sequence

from toprung.device import Device
from toprung.store import Machine
from toprung.tune.trial import Outcome, Trial
from toprung.tune.worker import Worker


class LocalLane:
    """One device of this machine."""

    def __init__(self, device: Device) -> None:
        self.name, self.device, self.machine = device.id, device, Machine.of(device)
        self._worker = Worker(device.id)

    def start(self) -> str:
        """Start its process."""
        self._worker.start()
        return self._worker.fingerprint

    def run(self, trial: Trial) -> Outcome:
        """In its process."""
        return self._worker.run(trial)

    def close(self) -> None:
        """End its process."""
        self._worker.close()


class Local:
    """Devices of this machine."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._lanes = [LocalLane(d) for d in devices]

    def lanes(self) -> Sequence[LocalLane]:
        """A lane a device."""
        return self._lanes

    def close(self) -> None:
        """End every process."""
        for lane in self._lanes:
            lane.close()
