"""A ladder on a device: its rungs in every variant, its vendors, its sizes; and what cannot run there, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from toprung import backends
from toprung.backends import nvrtc
from toprung.device import Device
from toprung.errors import UnknownName, Unsupported
from toprung.kernels.record import LANGUAGES
from toprung.lab import baselines
from toprung.lab.baselines import Peer
from toprung.lab.competitor import RungCompetitor
from toprung.lab.routines.base import routine
from toprung.lab.rung import Ladder, Options, Rung
from toprung.oracle.problem import Problem

DEFAULT_SIZES: Mapping[str, tuple[tuple[int, ...], ...]] = MappingProxyType(
    {"gpu": ((1024,), (2048,), (4096,)), "cpu": ((512,),), "other": ((512,),)}
)
"""Sizes for each kind of device when nobody chooses: under a minute on two CPU cores."""

SAMPLES = 5
"""Samples of each rung: a ladder has many."""


def variants(rungs: Sequence[Rung], device: Device, chosen: Options | None = None) -> list[RungCompetitor]:
    """Return every rung that a device can run, and one more for each further value of a switch that the device has a use for.

    ``chosen`` switches are set on every rung that has them, and there are no further ones then.

    Raises
    ------
    UnknownName, SwitchRefused
        a chosen switch that no rung has, or that the device has no use for
    """
    found: list[RungCompetitor] = []
    for name in chosen or {}:
        if not any(s.name == name for r in rungs for s in r.switches):
            raise UnknownName("switch of these rungs", name, dict.fromkeys(s.name for r in rungs for s in r.switches))
    for rung in rungs:
        if rung.needs(device):
            continue
        own = {s.name: chosen[s.name] for s in rung.switches if chosen and s.name in chosen}
        found.append(RungCompetitor(rung, rung.options(device, own), _variant(own)))
        if chosen:
            continue
        for switch in rung.switches:
            if not switch.refusal(device):
                for value in switch.values[1:]:
                    one = {switch.name: value}
                    found.append(RungCompetitor(rung, rung.options(device, one), _variant(one)))
    return found


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
        said = [f"no rung of {rungs[0].ladder} that was asked for runs here. {'; '.join(reasons)}"]
        languages = {LANGUAGES[r.source.suffix] for r in rungs}
        if not any(languages & set(backends.languages(d)) for d in backends.devices()):
            said += [line for b in backends.backends() if languages & set(b.languages) for line in b.advice()]
        if languages & set(nvrtc.LANGUAGES):
            said.append(f"`toprung inspect {rungs[0].ladder}` shows the machine code without such a device")
        raise Unsupported(". ".join(said))
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


def _variant(options: Options) -> str:
    return " ".join(f"{k}={v}" for k, v in options.items())
