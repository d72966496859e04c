"""Executor on the devices of a Dask cluster's workers (extra ``tune``): trials are sent there, results are stored here.

Each of Dask's workers measures in a process of its own that Dask does not know (``toprung.tune.worker``), so that a kernel that
crashes does not take the cluster's worker with it. A worker that is lost costs the trial it was at; its shapes go to another.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from toprung.device import Device
from toprung.errors import MissingExtra, NoDevice
from toprung.store import Machine
from toprung.tune.executors.base import LaneLost
from toprung.tune.trial import Outcome, Trial
from toprung.tune.worker import Worker

FIND = 60.0
"""Seconds to wait for the cluster's scheduler."""

LOOK, ANSWER = 0.5, 10.0
"""Seconds between two checks that a worker is still there, and seconds that a check may take."""

_workers: dict[str, Worker] = {}
"""Measuring processes by device id; used in a cluster's worker."""


def devices_here() -> list[Device]:
    """Return the devices of this machine. Runs on a cluster's worker."""
    from toprung import backends

    return [replace(d, handle=None) for d in backends.devices()]


def run_here(device: str, trial: Trial) -> Outcome:
    """Run a trial on a device of this machine. Runs on a cluster's worker."""
    return _workers.setdefault(device, Worker(device)).run(trial)


def stop_here() -> None:
    """End the measuring processes. Runs on a cluster's worker."""
    while _workers:
        _workers.popitem()[1].close()


class DaskLane:
    """One device of one of the cluster's workers."""

    def __init__(self, client: Any, address: str, device: Device) -> None:
        self.name, self.device, self.machine = f"{device.id} at {address}", device, Machine.of(device)
        self._client, self._address = client, address
        self._closed = False

    def start(self) -> str:
        # no fingerprint: the first trial starts the process, and binaries are compiled where they are used
        return ""

    def run(self, trial: Trial) -> Outcome:
        # run a trial on the cluster's worker; raise LaneLost if that goes
        future = self._client.submit(
            run_here, self.device.id, trial, workers=[self._address], allow_other_workers=False, pure=False, retries=0
        )  # fmt: skip
        while True:
            if self._closed:
                future.cancel()
                raise LaneLost(f"{self.name} was closed")
            if self._client.status != "running":
                raise LaneLost("the cluster lost its scheduler")
            try:
                try:  # scheduler_info would wait for a scheduler that is gone
                    seen = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER)
                except TimeoutError:
                    continue
                except OSError as error:  # the connection broke before the client noticed
                    raise LaneLost(f"the cluster lost its scheduler: {error}") from error
                if self._address not in seen["workers"]:
                    future.cancel()
                    raise LaneLost(f"the cluster lost its worker {self._address}")
                # also an outcome that is there may be lost before it is fetched, and is then waited for without end
                outcome: Outcome = future.result(timeout=LOOK)
                return outcome
            except (NoDevice, LaneLost):
                raise
            except Exception as error:  # whatever the cluster says of a task that it lost
                if not isinstance(error, TimeoutError) or future.status == "error":
                    raise LaneLost(f"{self.name}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        self._closed = True


def _is_no_lost_connection(record: logging.LogRecord) -> bool:
    """Return True if a log record does not report a broken connection."""
    return not (record.exc_info and isinstance(record.exc_info[1], OSError))


class Dask:
    """Executor on every worker of a cluster, with one device each: the one that ``device`` names, or the worker's best.

    Raises
    ------
    MissingExtra
        Dask's ``distributed`` is not installed
    NoDevice
        no cluster at the address, or none of its workers has such a device
    """

    def __init__(self, address: str, device: str | None = None) -> None:
        try:
            import distributed
        except ImportError:
            raise MissingExtra('--scheduler needs Dask: pip install "toprung[tune]"') from None
        # what is lost the run says itself, without a traceback
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        for name in ("tornado.application", "asyncio"):  # the client's event loop
            logging.getLogger(name).addFilter(_is_no_lost_connection)
        try:
            make: Any = distributed.Client
            self._client: Any = make(address, timeout=FIND, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise NoDevice(f"no Dask scheduler answers at {address}: {error}") from None
        found = self._client.run(devices_here)
        self._lanes: list[DaskLane] = []
        wanted = (device or "").lower()
        for where, devices in sorted(found.items()):
            named = [  # by the rules of backends.find; any if none is wanted
                d for d in devices
                if wanted in (d.id, d.backend, d.slug) or wanted in d.name.lower() or wanted in d.runtime.lower()
            ]  # fmt: skip
            if named:
                self._lanes.append(DaskLane(self._client, where, named[0]))
        if not self._lanes:
            self._client.close()
            what = device or "a device"
            raise NoDevice(f"none of the {len(found)} workers at {address} has {what}: start workers where the devices are")

    def lanes(self) -> Sequence[DaskLane]:
        return self._lanes

    def close(self) -> None:
        # end the processes that measure; the cluster stays
        for lane in self._lanes:
            lane.close()
        if self._client.status == "running":
            with suppress(Exception):  # of a cluster that goes just now: its processes end with it
                self._client.run(stop_here, on_error="ignore")
        self._client.close()
