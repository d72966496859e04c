"""Executor on this machine's devices, with one measuring process for each."""

from __future__ import annotations

from collections.abc import Sequence

from toprung.device import Device
from toprung.store import Machine
from toprung.tune.trial import Outcome, Trial
from toprung.tune.worker import Worker


class LocalLane:
    """One device of this machine, with its measuring process."""

    def __init__(self, device: Device) -> None:
        self.name, self.device, self.machine = device.id, device, Machine.of(device)
        self._worker = Worker(device.id)

    def start(self) -> str:
        # start the measuring process; return its session's fingerprint
        self._worker.start()
        return self._worker.fingerprint

    def run(self, trial: Trial) -> Outcome:
        return self._worker.run(trial)

    def close(self) -> None:
        self._worker.close()


class Local:
    """Executor on devices of this machine."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._lanes = [LocalLane(d) for d in devices]

    def lanes(self) -> Sequence[LocalLane]:
        return self._lanes

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
