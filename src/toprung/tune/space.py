"""Everything that may be tried for one call: the points of all kernels that compute it, ordered by what is expected of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Protocol

from toprung.blas.call import Call
from toprung.blas.choice import Choice
from toprung.blas.fp32x import path_of
from toprung.blas.tunable import Axes, Point, Tunable, tunables
from toprung.device import Device
from toprung.tune.model import Model, model

BEAM = 48
"""Coarse points whose neighbours in the other parameters are weighed, too, before anything is measured."""

DRAWS = 10_000
"""Tries to draw a legal point."""

COUNTED = 20_000
"""Points up to which the legal ones of a kernel are counted; of more, so many ``DRAWN`` say about what share is."""
DRAWN = 4000


class Space(Protocol):
    """What a strategy sees."""

    @property
    def axes(self) -> Axes:
        """Every parameter with its values."""

    def ranked(self) -> Iterator[Choice]:
        """From where a search starts, the most promising first."""

    def neighbours(self, choice: Choice) -> list[Choice]:
        """Choices that differ in little, the most promising first."""

    @property
    def size(self) -> int:
        """Combinations, legal or not."""

    def all(self) -> Iterator[Choice]:
        """Every legal point once."""

    def draw(self, rng: random.Random) -> Choice | None:
        """Any one; None where none is found."""

    def at(self, point: Mapping[str, int]) -> Choice | None:
        """What a point of the axes stands for; None where it is not legal."""


KERNEL = "kernel"
"""The axis that says which kernel, by its number."""


class CallSpace:
    """The space of one call on one device: the kernels of one precision path, ``fp32`` or ``fp32x``."""

    def __init__(self, device: Device, call: Call, expected: Model | None = None, precision: str = "fp32") -> None:
        self.device, self.call = device, call
        self.model = expected or model(device, call, precision)
        known = [t for t in tunables() if path_of(t.kernel) == precision]
        self._parts: list[tuple[Tunable, Axes]] = [(t, a) for t in known if (a := t.axes(device, call))]

    @property
    def axes(self) -> Axes:
        """Of all kernels; those that a kernel does not have count for nothing there."""
        found: dict[str, tuple[int, ...]] = {KERNEL: tuple(range(len(self._parts)))} if len(self._parts) > 1 else {}
        for _, axes in self._parts:
            for name, values in axes.items():
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *values)))
        return found

    @property
    def size(self) -> int:
        """Combinations, legal or not."""
        return sum(math.prod(len(v) for v in axes.values()) for _, axes in self._parts)

    @property
    def legal(self) -> int:
        """Points that can be launched: counted where there are few, else reckoned from a sample of two digits' worth."""
        found = 0.0
        for t, axes in self._parts:
            points = math.prod(len(v) for v in axes.values())
            if points <= COUNTED:
                every = itertools.product(*axes.values())
                found += sum(self._make(t, dict(zip(axes, values, strict=True))) is not None for values in every)
            else:
                rng = random.Random(0)
                drawn = ({name: rng.choice(values) for name, values in axes.items()} for _ in range(DRAWN))
                found += points * sum(self._make(t, point) is not None for point in drawn) / DRAWN
        return int(float(f"{found:.2g}")) if found > COUNTED else round(found)

    def at(self, point: Mapping[str, int]) -> Choice | None:
        """The choice of a point of ``axes``."""
        if not self._parts:
            return None
        tunable, axes = self._parts[point.get(KERNEL, 0)]
        own = {name: point[name] for name in axes}
        if any(value not in axes[name] for name, value in own.items()):
            return None
        return tunable.make(self.device, self.call, own)

    def ranked(self) -> Iterator[Choice]:
        """The best point of each kernel by the model, then the coarse points, and among the first of them variations of the best.

        The model compares a kernel's points better than kernels: what is expected of one as a whole may be far off.
        """
        coarse = dict.fromkeys(c for t, axes in self._parts for p in _coarse(self, t, axes) if (c := self._make(t, p)))
        times = {c: self.model.predict(c) for c in coarse}
        order = sorted(times, key=times.__getitem__)
        if order and times[order[0]] < math.inf:
            beam = dict.fromkeys(n for c in order[:BEAM] for n in self.neighbours(c))
            times |= {c: self.model.predict(c) for c in beam if c not in times}
            alike = itertools.groupby(sorted(times, key=times.__getitem__), times.__getitem__)
            order = [c for _, same in alike for c in sorted(same, key=str)]
        first: dict[str, Choice] = {}
        for choice in order:
            first.setdefault(choice.kernel, choice)
        yield from dict.fromkeys((*first.values(), *order))

    def all(self) -> Iterator[Choice]:
        """Every legal point once."""
        seen = set()
        for t, axes in self._parts:
            for values in itertools.product(*axes.values()):
                found = self._make(t, dict(zip(axes, values, strict=True)))
                if found and found not in seen:
                    seen.add(found)
                    yield found

    def neighbours(self, choice: Choice) -> list[Choice]:
        """One parameter changed to any other value, or two of the tile's by one step each."""
        part = next(((t, axes) for t, axes in self._parts if t.kernel == choice.kernel), None)
        if part is None:
            return []
        tunable, axes = part
        here = dict(tunable.point(choice))
        points = [{**here, name: v} for name, values in axes.items() for v in values if v != here[name]]
        steps = {name: _steps(values, here[name]) for name, values in axes.items() if len(values) > 1}
        for (a, left), (b, right) in itertools.combinations(steps.items(), 2):
            points += [{**here, a: x, b: y} for x in left for y in right]
        found = dict.fromkeys(c for p in points if (c := self._make(tunable, p)) and c != choice)
        return sorted(found, key=self.model.predict)

    def draw(self, rng: random.Random) -> Choice | None:
        """A legal point, each kernel and each of its points as likely as any other."""
        for _ in range(DRAWS if self._parts else 0):
            tunable, axes = rng.choice(self._parts)
            if found := self._make(tunable, {name: rng.choice(values) for name, values in axes.items()}):
                return found
        return None

    def _make(self, tunable: Tunable, point: Point) -> Choice | None:
        return tunable.make(self.device, self.call, point)


def _coarse(space: CallSpace, tunable: Tunable, axes: Axes) -> Iterator[Point]:
    if tunable.coarse is not None:
        yield from tunable.coarse(space.device, space.call)
    else:
        for values in itertools.product(*axes.values()):
            yield dict(zip(axes, values, strict=True))


def _steps(values: tuple[int, ...], at: int) -> list[int]:
    """The next smaller and the next larger value."""
    ordered = sorted(values)
    below, above = [v for v in ordered if v < at], [v for v in ordered if v > at]
    return below[-1:] + above[:1]
