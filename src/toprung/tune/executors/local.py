"""Executor on this machine's devices, with one measuring process for each."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import IO

from toprung.device import Device
from toprung.store import Machine
from toprung.tune.trial import Outcome, Trial
from toprung.tune.worker import Worker


class LocalLane:
    """A device of this machine with a measuring process; lanes of a device share a lock file, ``shared``."""

    def __init__(self, device: Device, shared: IO[bytes] | None = None) -> None:
        self.name, self.device, self.machine = device.id, device, Machine.of(device)
        self._worker = Worker(device.id, shared=shared)

    def start(self) -> str:
        # start the measuring process; return its session's fingerprint
        self._worker.start()
        return self._worker.fingerprint

    def run(self, trial: Trial) -> Outcome:
        return self._worker.run(trial)

    def close(self) -> None:
        self._worker.close()


class Local:
    """Executor on devices of this machine, each with ``lanes`` lanes that use it in turns."""

    def __init__(self, devices: Sequence[Device], lanes: int = 1) -> None:
        self._lanes = [
            LocalLane(d, shared)
            for d in devices
            for shared in lanes * [tempfile.TemporaryFile() if lanes > 1 else None]  # noqa: SIM115  # the workers hold it
        ]

    def lanes(self) -> Sequence[LocalLane]:
        return self._lanes

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
