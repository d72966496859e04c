"""Competitors, ours or somebody else's: each can be bound to operands, run, timed, fetched."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from toprung.backends.base import HOLD_SECONDS, Launch, Resources, Session
from toprung.device import Device
from toprung.errors import IllegalTile, OutOfDeviceMemory, Unsupported
from toprung.kernels.build import Compiled, build
from toprung.lab.routines.base import method
from toprung.lab.rung import Options, Rung
from toprung.oracle.placed import OnDevice
from toprung.oracle.precision import precision
from toprung.oracle.problem import F32, Problem
from toprung.tile import Tile


@dataclass(frozen=True)
class Promise:
    """Promise of a competitor: its precision, and what a reader must know.

    Attributes
    ----------
    precision : its path, by its name in ``toprung.oracle.precision``: results are held to that path's limit and labelled with it
    deterministic : the same call gives the same bits
    note : what a reader of its figures must know besides
    """

    precision: str = "fp32"
    deterministic: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        precision(self.precision)


class Clock(Protocol):
    """Clock that time is read on; every session is one."""

    def mark(self) -> object:
        """A point in what runs."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two points; waits for the second."""

    def hold(self) -> Launch | None:
        """See ``toprung.backends.base.Session``."""


class HostClock:
    """The host's clock, for what is done when the call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def hold(self) -> None:
        """There is no queue."""


AT_ONCE = 100
"""Calls that are put into a queue while it is held: a GPU's has room for about a thousand launches."""


class BoundCompetitor(ABC):
    """A competitor with its operands in place."""

    clock: Clock

    @abstractmethod
    def reset(self) -> None:
        """Put the output back to what it was before the first run."""

    @abstractmethod
    def run(self) -> None:
        """One call: put into the device's queue, or done when it returns."""

    @abstractmethod
    def fetch(self) -> F32:
        """The output's backing array as it is now."""

    def time(self, calls: int, in_flight: Callable[[], None] = lambda: None) -> float:
        """Run ``calls`` times in a row and return the seconds a call took, on the device's clock where it has one.

        ``in_flight`` is called when the last call is in the queue and, on a device, still runs: the moment to read its clock.
        """
        return self._timed(self.run, calls, in_flight)

    def time_each(self, calls: int) -> float:
        """Time with two marks around each call in place of two around the loop: the mean of what lies between them.

        What a mark and the gap behind it cost is then part of every call.
        """
        marks = []
        for _ in range(calls):
            start = self.clock.mark()
            self.run()
            marks.append((start, self.clock.mark()))
        return sum(self.clock.seconds(start, end) for start, end in marks) / calls

    def time_held(self, calls: int, in_flight: Callable[[], None] = lambda: None) -> tuple[float, float]:
        """As ``time``, with the queue held until calls are in it: the device's seconds a call, and the host's to put it there.

        Where queues cannot be held it is ``time``, and nothing is known of the host, which is 0. Source of the idea: nvbench.
        """
        device = host = 0.0
        done, at_once = 0, AT_ONCE
        while done < calls:
            if (release := self.clock.hold()) is None:
                return self.time(calls, in_flight), 0.0
            count = min(at_once, calls - done)
            try:
                start, begin = self.clock.mark(), time.perf_counter()
                for _ in range(count):
                    self.run()
                putting = time.perf_counter() - begin
                end = self.clock.mark()
            finally:
                release()
            if putting > HOLD_SECONDS and count > 1:  # by then the queue has gone on by itself: once more, with fewer
                at_once = max(1, count // 10)
                continue
            done += count
            if done == calls:
                in_flight()
            device += self.clock.seconds(start, end)
            host += putting
        return device / calls, host / calls

    def helper_time(self, calls: int) -> float:
        """Time the part of a call that only lays out operands; 0 where there is none."""
        return 0.0

    def _timed(self, call: Callable[[], None], calls: int, in_flight: Callable[[], None] = lambda: None) -> float:
        start = self.clock.mark()
        for _ in range(calls):
            call()
        end = self.clock.mark()
        in_flight()
        return self.clock.seconds(start, end) / calls


def refuse_what_cannot_fit(problem: Problem, device: Device) -> None:
    """Raise OutOfDeviceMemory for operands that the device cannot hold, before any are made."""
    largest, total = max(m.nbytes for m in problem.matrices), sum(m.nbytes for m in problem.matrices)
    if largest > device.max_buffer_bytes:
        raise OutOfDeviceMemory(str(device), largest, device.max_buffer_bytes)
    # a CPU's memory holds the host's operands, the random numbers in float64 and the reference as well
    needed = total * (5 if device.kind == "cpu" else 1)
    if needed > device.memory_bytes:
        raise OutOfDeviceMemory(str(device), needed, device.memory_bytes, "all operands")


class Competitor(Protocol):
    """Anything that computes a routine: a rung, somebody else's library, our own."""

    name: str
    title: str
    promise: Promise

    def absent(self, device: Device) -> str:
        """Why it cannot take part beside this device, and what to do about it; empty if it can."""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        """Get ready to run on these operands. Raises Unsupported for a problem it does not compute."""

    def describe(self, device: Device) -> Mapping[str, Any]:
        """Describe it as JSON."""


class BoundOnDevice(BoundCompetitor):
    """A competitor in a session's own memory: ``launch`` puts one call into its queue."""

    def __init__(self, placed: OnDevice, launch: Callable[[], object]) -> None:
        self.clock, self._launch = placed.session, launch
        self.placed = placed  # keeps the memory alive, too

    def reset(self) -> None:
        self.placed.reset()

    def run(self) -> None:
        self._launch()

    def fetch(self) -> F32:
        return self.placed.fetch()


class BoundRung(BoundOnDevice):
    """A rung bound to operands."""

    def __init__(self, compiled: Compiled[Rung], placed: OnDevice) -> None:
        steps = method(compiled.record).steps(compiled, placed.operands.problem, placed.parts, placed.session)
        super().__init__(placed, in_turn([s.launch for s in steps]))
        self._helpers = [s.launch for s in steps if s.helper]
        self.names = [s.name for s in steps]

    def helper_time(self, calls: int) -> float:
        return self._timed(in_turn(self._helpers), calls) if self._helpers else 0.0


def in_turn(launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Return a function that calls some launches one after the other."""

    def call() -> None:
        for launch in launches:
            launch()

    return call


class Rotating(BoundCompetitor):
    """One competitor over several sets of operands in turn, so that no call finds its operands in a cache."""

    def __init__(self, sets: Sequence[BoundCompetitor]) -> None:
        self.clock, self._sets, self._turn = sets[0].clock, sets, itertools.cycle(sets)

    def reset(self) -> None:
        for one in self._sets:
            one.reset()

    def run(self) -> None:
        next(self._turn).run()

    def helper_time(self, calls: int) -> float:
        return self._sets[0].helper_time(calls)

    def fetch(self) -> F32:
        return self._sets[0].fetch()


class RungCompetitor:
    """A rung with one choice of its switches as a competitor: ``kepler/r07``.

    Attributes
    ----------
    tile : its tile; None until it is chosen for a device, unless one was given
    resources : what its kernel takes, once it was built
    elsewhere : prepares it in another process; None: it is prepared in this one
    """

    elsewhere: Callable[[RungCompetitor, OnDevice], BoundCompetitor] | None = None

    def __init__(self, rung: Rung, options: Options = MappingProxyType({}), variant: str = "", tile: Tile | None = None) -> None:
        self.rung, self.options, self.variant, self.tile = rung, options, variant, tile
        self.name, self.title, self.promise, self.number = rung.name, rung.idea, Promise(rung.precision), rung.number
        self.resources: Resources | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.variant}".rstrip()

    def absent(self, device: Device) -> str:
        # what the rung needs that the device lacks, or why no tile of it is legal there; empty if it can run
        if reason := self.rung.needs(device):
            return reason
        try:
            self._tile_for(device)
        except IllegalTile as error:
            return str(error)
        return ""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        device, wanted = placed.session.device, placed.operands.problem.routine
        if wanted != self.rung.routine:
            raise Unsupported(f"{self.name} computes {self.rung.routine}, not {wanted}")
        options = self.rung.options(device, self.options)
        self.tile = self._tile_for(device)
        if self.elsewhere is not None:
            return self.elsewhere(self, placed)
        compiled = self.compiled(self.tile, options, placed.session)
        self.resources = compiled.resources
        return BoundRung(compiled, placed)

    def compiled(self, tile: Tile, options: Options, session: Session) -> Compiled[Rung]:
        """Build the kernel, or take the one that this session has."""
        return build(self.rung, tile, options, session)

    def describe(self, device: Device) -> dict[str, Any]:
        options = self.rung.options(device, self.options)
        return describe_rung(self.rung, self._tile_for(device), options, self.variant, self.resources)

    def _tile_for(self, device: Device) -> Tile:
        return self.tile or self.rung.tile_for(device, self.rung.options(device, self.options))


def describe_rung(
    rung: Rung, tile: Tile | None, options: Options, variant: str = "", resources: Resources | None = None
) -> dict[str, Any]:
    """A rung's entry in a record."""
    return {
        "kind": "rung", "name": rung.name, "ladder": rung.ladder, "rung": rung.stem, "number": rung.number, "idea": rung.idea,
        "variant": variant, "tile": tile.given() if tile else {}, "options": dict(options), "precision": rung.precision,
        "resources": resources._asdict() if resources else {},
    }  # fmt: skip
