"""Users' rungs on a CPU, each in a process of its own: one that crashes or does not end leaves the command and its record alone.

    python -m toprung.tune.apart FD DEVICE

A CPU runs a kernel in the process that launched it, where a stray pointer is a segmentation fault, and nothing stops a loop.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from toprung.backends.waiting import NotEnded, patiently
from toprung.device import Device
from toprung.errors import LaunchError, NoDevice, ToprungError
from toprung.kernels.build import LOADED
from toprung.lab.competitor import BoundCompetitor, Competitor, RungCompetitor
from toprung.lab.harness.single import LoadedRung
from toprung.lab.rung import roots, rung
from toprung.oracle.check import Operands
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import F32
from toprung.tune.worker import Worker, outlive_nobody

OVER = 5.0
"""Seconds beyond a budget's end that a call may still take."""

FOREVER = 1e6
"""Seconds to wait where there is no budget."""

HANDED = ("tile", "resources", "compile_seconds", "load_seconds")
"""Attributes of a rung that its process finds out when it builds the kernel."""


@contextmanager
def apart(competitors: Sequence[Competitor], device: Device, budget: float | None = None) -> Iterator[None]:
    """Have users' rungs on a CPU run in processes of their own, which end with the block or ``budget`` seconds from now."""
    until = time.monotonic() + budget if budget is not None else math.inf
    processes = []
    for who in competitors if device.kind == "cpu" else ():
        if isinstance(who, RungCompetitor) and not who.rung.source.is_relative_to(roots()[0]):
            processes.append(Apart(device, until))
            who.elsewhere = processes[-1].prepare
    try:
        yield
    finally:
        for one in processes:
            one.worker.close()


class Apart:
    """Process of one rung, started when it is first prepared."""

    def __init__(self, device: Device, until: float) -> None:
        self.worker, self._until = Worker(device.id, "toprung.tune.apart", quiet=False), until

    def prepare(self, who: RungCompetitor, placed: OnDevice) -> BoundApart:
        """Prepare a rung in the process, in place of what was prepared there before."""
        o, loaded = placed.operands, isinstance(who, LoadedRung)
        asked = loaded, who.name, dict(who.options), who.variant, who.tile, o.problem, dict(o.flat)
        found, texts = self.ask("prepare", *asked)
        vars(who).update(found)
        LOADED.update(texts)
        return BoundApart(self.ask)

    def ask(self, *request: Any, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """Return what a method of the prepared rung returns in the process.

        Raises
        ------
        LaunchError
            the process crashed, or the budget is over
        NoDevice
            the process could not be started
        NotEnded
            a signal came, and the kernel did not end
        """
        limit = min(FOREVER, max(self._until - time.monotonic(), 0.0) + OVER)
        try:
            answer = patiently(self.worker.ask, request, limit, meanwhile)[0]
        except NotEnded:
            self.worker.kill()
            raise
        except NoDevice:
            if time.monotonic() > self._until:
                raise LaunchError(f"did not end: it was stopped {OVER:.0f} s after the budget was over") from None
            if not self.worker.how:  # it could not be started
                raise
            raise LaunchError(f"the kernel crashed: {self.worker.how}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


class BoundApart(BoundCompetitor):
    """A rung that is bound to operands in its process."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def reset(self) -> None:
        self._ask("reset")

    def run(self) -> None:
        self._ask("run")

    def fetch(self) -> F32:
        found: F32 = self._ask("fetch")
        return found

    def time(self, calls: int, in_flight: Callable[[], None] = lambda: None) -> float:
        return float(self._ask("time", calls, meanwhile=in_flight))

    def time_each(self, calls: int) -> float:
        return float(self._ask("time_each", calls))

    def time_held(self, calls: int, in_flight: Callable[[], None] = lambda: None) -> tuple[float, float]:
        return self.time(calls, in_flight), 0.0  # a CPU's queue is not held

    def helper_time(self, calls: int) -> float:
        return float(self._ask("helper_time", calls))


def main(words: list[str]) -> None:
    """Prepare a rung, and call its methods for the parent until that is gone: the main function of the child."""
    talk = Connection(int(words[0]))
    threading.Thread(target=outlive_nobody, args=(os.getppid(),), daemon=True).start()
    from toprung import backends

    try:
        session = backends.open_device(backends.find(words[1]))
    except Exception as error:
        talk.send({"trouble": str(error)})
        return
    talk.send({"fingerprint": ""})
    bound: BoundCompetitor | None = None
    while True:
        try:
            name, *given = talk.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            if name == "prepare":
                loaded, which, options, variant, tile, problem, flat = given
                bound = None  # gives memory back
                who = LoadedRung(variant, rung(which), options, tile) if loaded else RungCompetitor(
                    rung(which), options, variant, tile
                )  # fmt: skip
                bound = who.prepare(OnDevice(Operands(problem, DISTRIBUTIONS["uniform"], 0, flat), session))
                answer: Any = {k: v for k, v in vars(who).items() if k in HANDED}, LOADED
            else:
                answer = getattr(bound, name)(*given)
        except Exception as error:
            answer = error if isinstance(error, ToprungError) else LaunchError(f"{type(error).__name__}: {error}")
        talk.send((answer,))


if __name__ == "__main__":
    main(sys.argv[1:])
