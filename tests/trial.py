"""Running a rung on hostile operands, for every test that does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from toprung.backends import find
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import NoDevice, SwitchRefused, UnknownName
from toprung.kernels.build import Compiled, build
from toprung.kernels.record import with_includes
from toprung.lab.competitor import BoundRung
from toprung.lab.rung import Rung, ladder, ladder_names
from toprung.oracle.check import Oracle, Verdict, hostile
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import F32, Problem
from toprung.tile import Tile

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = Path(__file__).resolve().parent / "fixtures"
LENGTHS = (*range(1, 10), 31, 32, 33, 63, 64, 65, 127, 128, 129)
SCALARS = (0.0, 1.0, -1.0, 0.7, 1.3)


def fixture(name: str) -> Path:
    """Return the path of a fixture.

    Those that begin with ``h200`` are excerpts of result files, as their ``excerpt_of`` says. They stay as they are when the result
    file itself is measured again.
    """
    return FIXTURES / name


@functools.cache
def tested() -> Device | None:
    """The device the tests run on: what TOPRUNG_TEST_DEVICE names, or PoCL, which every machine that runs the tests has."""
    if name := os.environ.get("TOPRUNG_TEST_DEVICE"):
        return find(name)
    with contextlib.suppress(NoDevice, UnknownName):
        found = find("portable computing language")
        return found if found.kind == "cpu" else None
    return None


def gemm_rungs() -> list[Rung]:
    """Every rung of every ladder that computes a gemm."""
    found = (r for name in ladder_names() for r in ladder(name).rungs)
    return [r for r in found if r.routine == "gemm"]


@dataclass(frozen=True)
class Variant:
    """A rung with one choice of its switches."""

    rung: Rung
    options: Mapping[str, int]

    def __str__(self) -> str:
        return "-".join((self.rung.name, *(f"{k}={v}" for k, v in self.options.items())))


def variants(device: Device | None) -> list[Variant]:
    """Every rung that the device can run, at its defaults and with every other value of each switch it has a use for."""
    found = []
    for rung in gemm_rungs():
        if device and rung.needs(device):
            continue
        found.append(Variant(rung, {}))
        for switch, value in ((s, v) for s in rung.switches for v in s.values):
            try:
                if device is None or rung.options(device) == rung.options(device, {switch.name: value}):
                    continue
            except SwitchRefused:
                continue
            found.append(Variant(rung, {switch.name: value}))
    return found


@dataclass(frozen=True)
class Outcome:
    """Remains of a run: the verdict, the output's backing array, and the inputs that were changed."""

    verdict: Verdict
    flat: F32
    changed: tuple[str, ...]
    steps: tuple[str, ...]


def attempt(compiled: Compiled, problem: Problem, session: Session, distribution: str = "uniform", seed: int = 0) -> Outcome:
    """Run a rung once on hostile operands and judge what it left."""
    operands = hostile(problem, distribution, seed)
    placed = OnDevice(operands, session)
    prepared = BoundRung(compiled, placed)
    prepared.time(1)
    inputs = [m.name for m in problem.matrices if not m.output]
    changed = tuple(
        name for name in inputs if not np.array_equal(placed.fetch(name).view(np.uint32), operands.flat[name].view(np.uint32))
    )
    flat = prepared.fetch()
    return Outcome(Oracle(operands).verify(flat, compiled.record.precision), flat, changed, tuple(prepared.names))


def make(rung: Rung, session: Session, options: Mapping[str, int] | None = None, tile: Tile | None = None) -> Compiled:
    """Build a rung with its tile for the device, or with another."""
    options = options or {}
    return build(rung, tile or rung.tile_for(session.device, options), options, session)


def altered(rung: Rung, folder: Path, *changes: tuple[str, str]) -> Rung:
    """A copy of a rung whose text, what it includes in place, has some fragments replaced, each of which must be there."""
    text = with_includes(rung.source.read_text(), rung.source.parent)
    for fragment, replacement in changes:
        assert fragment in text, f"{rung} has no {fragment!r} any more: plant the bug elsewhere"
        text = text.replace(fragment, replacement)
    path = folder / rung.source.name
    path.write_text(text)
    return replace(rung, source=path)


def triples() -> list[tuple[int, int, int]]:
    """Every M, N, K out of LENGTHS."""
    return list(itertools.product(LENGTHS, repeat=3))
