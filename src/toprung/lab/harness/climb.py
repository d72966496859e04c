"""Climb a ladder: build, verify and time every rung on one device, beside the vendor. Yields each change, for a live table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from toprung import backends
from toprung.backends.base import Resources, Session
from toprung.device import Device
from toprung.errors import BuildError, IllegalTile, LaunchError, OutOfDeviceMemory, UnknownName, Unsupported
from toprung.kernels.build import build
from toprung.lab import baselines
from toprung.lab.baselines import Peer
from toprung.lab.competitor import BoundCompetitor, BoundRung, describe_rung, refuse_what_cannot_fit
from toprung.lab.harness.measure import SAMPLES, Measurement, Timing
from toprung.lab.routines.base import routine
from toprung.lab.rung import Ladder, Options, Rung
from toprung.oracle.check import Oracle, Verdict, hostile
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem
from toprung.tile import Tile

DEFAULT_SIZES: Mapping[str, tuple[tuple[int, ...], ...]] = MappingProxyType(
    {"gpu": ((1024,), (2048,), (4096,)), "cpu": ((512,),), "other": ((512,),)}
)
"""Sizes for each kind of device when nobody chooses: under a minute on two CPU cores."""


@dataclass
class Entry:
    """A row of the table: a rung with one choice of its switches, or the vendor.

    Attributes
    ----------
    state : ``waiting``, ``building``, ``checking``, ``timing``, ``done``, ``wrong`` or ``failed``
    failure : why, for the last two
    """

    who: Rung | Peer
    tile: Tile | None = None
    options: Options = field(default_factory=dict)
    variant: str = ""
    state: str = "waiting"
    failure: str = ""
    verdict: Verdict | None = None
    timing: Timing | None = None
    measurement: Measurement | None = None
    resources: Resources | None = None

    @property
    def number(self) -> int:
        """The rung's number; 0 for the vendor."""
        return self.who.number if isinstance(self.who, Rung) else 0

    @property
    def label(self) -> str:
        """Number and variant."""
        return f"{self.number} {self.variant}".rstrip()

    @property
    def idea(self) -> str:
        """What it is, in a few words."""
        return self.who.idea if isinstance(self.who, Rung) else self.who.title

    @property
    def precision(self) -> str:
        """What it promises, by its name in ``toprung.oracle.precision``."""
        return self.who.precision if isinstance(self.who, Rung) else self.who.promise.precision

    def describe(self, device: Device) -> dict[str, Any]:
        """Who this is, as JSON."""
        if isinstance(self.who, Rung):
            return describe_rung(self.who, self.tile, self.options, self.variant, self.resources)
        return self.who.describe(device)


def entries(rungs: Sequence[Rung], device: Device, vendors: Sequence[Peer] | None, chosen: Options | None = None) -> list[Entry]:
    """The rows for one device: its vendors, every rung it can run, and a row for each further value of a switch it has a use for.

    ``chosen`` switches are set on every rung that has them, and there are no further rows then.

    Raises
    ------
    UnknownName, SwitchRefused
        a chosen switch that no rung has, or that the device has no use for
    """
    rows = [Entry(vendor) for vendor in vendors or ()]
    for name in chosen or {}:
        if not any(s.name == name for r in rungs for s in r.switches):
            raise UnknownName("switch of these rungs", name, dict.fromkeys(s.name for r in rungs for s in r.switches))
    for rung in rungs:
        if rung.needs(device):
            continue
        own = {s.name: chosen[s.name] for s in rung.switches if chosen and s.name in chosen}
        rows.append(Entry(rung, options=rung.options(device, own), variant=_variant(own)))
        if chosen:
            continue
        for switch in rung.switches:
            if not switch.refusal(device):
                for value in switch.values[1:]:
                    options = rung.options(device, {switch.name: value})
                    rows.append(Entry(rung, options=options, variant=_variant({switch.name: value})))
    return rows


def refusals(rungs: Sequence[Rung], device: Device) -> list[str]:
    """Every rung that needs another device, and every switch that this one has no use for, with the reason."""
    rung_lines = [f"{r.name}: {reason}" for r in rungs if (reason := r.needs(device))]
    return rung_lines + [f"{r.name} {s.name}: {reason}" for r in rungs for s in r.switches if (reason := s.refusal(device))]


def find_vendors(device: Device, ladder: Ladder) -> tuple[list[Peer], str]:
    """Rung 0 on a device (those the ladder names, or the device's own vendor), and why somebody is not there."""
    if ladder.vendors:
        named = [(one, one.absent(device)) for one in map(baselines.peer, ladder.vendors)]
        return [one for one, reason in named if not reason], "; ".join(f"{one.title}: {reason}" for one, reason in named if reason)
    one, reason = baselines.vendor(device, ladder.routine)
    return [one] if one else [], reason


def runnable(rungs: Sequence[Rung], devices: Sequence[Device]) -> list[Device]:
    """Those of some devices that can run at least one of some rungs.

    Raises
    ------
    Unsupported
        none of them can, with every reason
    """
    found = [d for d in devices if not rungs or any(not r.needs(d) for r in rungs)]
    if not found:
        reasons = dict.fromkeys(f"{d}: {r.needs(d)}" for d in devices for r in rungs)
        raise Unsupported(
            f"no rung of {rungs[0].ladder} that was asked for runs here. {'; '.join(reasons)}. "
            f"`toprung inspect {rungs[0].ladder}` shows the machine code without such a device"
        )
    return found


def best_for(rungs: Sequence[Rung]) -> Device:
    """The best device that can run at least one of some rungs; the best of all where none can, or where there are no rungs.

    Raises
    ------
    NoDevice
        there is no device
    """
    best = backends.find()
    if all(r.needs(best) for r in rungs):
        return next((d for d in backends.devices() if any(not r.needs(d) for r in rungs)), best)
    return best


def default_sizes(ladder: Ladder, device: Device) -> tuple[tuple[int, ...], ...]:
    """The sizes a ladder is climbed at when nobody chooses: its routine's, or the common ones."""
    sizes: Mapping[str, tuple[tuple[int, ...], ...]] = getattr(routine(ladder.routine), "DEFAULT_SIZES", DEFAULT_SIZES)
    return sizes[device.kind]


def problem_of(ladder: Ladder, size: tuple[int, ...]) -> Problem:
    """The problem a size means on this ladder; BadSize if it means none."""
    return routine(ladder.routine).from_size(size)


def climb(problem: Problem, rows: Sequence[Entry], session: Session, samples: int = SAMPLES, each: bool = False) -> Iterator[Entry]:
    """Run every entry on one problem; yields an entry whenever it changed.

    First each in turn is built, run once on hostile operands and verified; then those that were right take turns at being
    timed, ``samples`` times each; with ``each`` also by marks around each call, in the same turn. Whatever fails is recorded in
    its entry and the rest goes on.

    Raises
    ------
    OutOfDeviceMemory
        the operands themselves do not fit
    """
    refuse_what_cannot_fit(problem, session.device)
    operands = hostile(problem)
    placed = OnDevice(operands, session)
    oracle = Oracle(operands)
    for entry in rows:
        entry.state, entry.failure, entry.verdict, entry.timing, entry.measurement = "building", "", None, None, None
        yield entry
        try:
            prepared = _prepare(entry, placed, session)
            entry.state = "checking"
            yield entry
            prepared.reset()
            prepared.time(1)
            entry.verdict = oracle.verify(prepared.fetch(), entry.precision)
            if not entry.verdict.right:
                entry.state, entry.failure = "wrong", entry.verdict.problems[0]
                yield entry
                continue
            entry.timing = Timing(prepared)
            if samples:
                entry.timing.warm_up()
        except (BuildError, IllegalTile, LaunchError, OutOfDeviceMemory, Unsupported) as error:
            entry.state, entry.failure = "failed", str(error)
        else:
            entry.state = "timing"
        yield entry
    for turn in range(samples):
        for entry in rows:
            if entry.state == "timing" and entry.timing and entry.verdict:
                entry.timing.sample(session.clock_mhz)
                if each:
                    entry.timing.sample_each()
                entry.measurement = entry.timing.measurement(entry.describe(session.device), problem, entry.verdict)
                if turn == samples - 1:
                    entry.state = "done"
                yield entry


def _prepare(entry: Entry, placed: OnDevice, session: Session) -> BoundCompetitor:
    if isinstance(entry.who, Rung):
        entry.tile = entry.who.tile_for(session.device, entry.options)
        compiled = build(entry.who, entry.tile, entry.options, session)
        entry.resources = compiled.resources
        return BoundRung(compiled, placed)
    return entry.who.prepare(placed)


def _variant(options: Options) -> str:
    return " ".join(f"{k}={v}" for k, v in options.items())
