"""Search space of one call: the points of all kernels that compute it, ordered by the cost model."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Protocol

from toprung.device import Device
from toprung.dispatch.selection import Candidate
from toprung.gemm.desc import Desc
from toprung.kernels.base import Axes, Point, SearchedFamily
from toprung.kernels.registry import families
from toprung.tune.model import Model, model

BEAM = 48
"""Number of best coarse points whose neighbours are ranked, too, before anything is measured."""

DRAWS = 10_000
"""Number of attempts to draw a legal point."""

COUNTED = 20_000
"""Most points of a kernel whose legal ones are counted; of more, their share is estimated from ``DRAWN`` random points."""
DRAWN = 4000
"""Number of random points from which the share of legal ones is estimated."""


class Space(Protocol):
    """A search space, as a strategy sees it."""

    def ranked(self) -> Iterator[Candidate]:
        """Yield candidates to start a search from, the most promising first."""

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Return candidates that differ in little, the most promising first."""

    @property
    def size(self) -> int:
        """Number of combinations of parameters, legal or not."""

    def all(self) -> Iterator[Candidate]:
        """Yield every legal candidate once."""

    def draw(self, rng: random.Random) -> Candidate | None:
        """Return a random legal candidate, None if none is found."""


class CallSpace:
    """The space of one call on one device: the kernels of one precision path, ``fp32`` or ``fp32x``."""

    def __init__(self, device: Device, desc: Desc, expected: Model | None = None, precision: str = "fp32") -> None:
        self.device, self.desc = device, desc
        self.model = expected or model(device, desc, precision)
        known = [f for f in families() if f.own and f.precision == precision and isinstance(f, SearchedFamily)]
        self._parts = [(f, a) for f in known if not f.supports(device, desc) and (a := f.space(device, desc))]

    @property
    def size(self) -> int:
        return sum(math.prod(len(v) for v in axes.values()) for _, axes in self._parts)

    @property
    def legal(self) -> int:
        """Number of points that can be launched: counted where there are few, else estimated from a sample to two digits."""
        found = 0.0
        for t, axes in self._parts:
            points = math.prod(len(v) for v in axes.values())
            if points <= COUNTED:
                found += sum(self._make(t, point) is not None for point in _points(axes))
            else:
                rng = random.Random(0)
                drawn = ({name: rng.choice(values) for name, values in axes.items()} for _ in range(DRAWN))
                found += points * sum(self._make(t, point) is not None for point in drawn) / DRAWN
        return int(float(f"{found:.2g}")) if found > COUNTED else round(found)

    def ranked(self) -> Iterator[Candidate]:
        """Yield the best point of each kernel by the cost model, then all coarse points and the neighbours of the best of them.

        Each kernel comes first once because the model compares points of one kernel better than kernels with each other.
        """
        starts = ((t, axes, t.starts(self.device, self.desc)) for t, axes in self._parts)
        points = ((t, p) for t, axes, some in starts for p in (_points(axes) if some is None else some))
        coarse = dict.fromkeys(c for t, p in points if (c := self._make(t, p)))
        times = {c: self.model.predict(c) for c in coarse}
        order = sorted(times, key=times.__getitem__)
        if order and times[order[0]] < math.inf:
            beam = dict.fromkeys(n for c in order[:BEAM] for n in self.neighbours(c))
            times |= {c: self.model.predict(c) for c in beam if c not in times}
            alike = itertools.groupby(sorted(times, key=times.__getitem__), times.__getitem__)
            order = [c for _, same in alike for c in sorted(same, key=str)]
        first: dict[str, Candidate] = {}
        for candidate in order:
            first.setdefault(candidate.kernel, candidate)
        yield from dict.fromkeys((*first.values(), *order))

    def all(self) -> Iterator[Candidate]:
        seen = set()
        for t, axes in self._parts:
            for point in _points(axes):
                found = self._make(t, point)
                if found and found not in seen:
                    seen.add(found)
                    yield found

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        part = next(((t, axes) for t, axes in self._parts if t is candidate.family), None)
        if part is None:
            return []
        family, axes = part
        here = dict(family.point(candidate.config))
        points = [{**here, name: v} for name, values in axes.items() for v in values if v != here[name]]
        steps = {name: _steps(values, here[name]) for name, values in axes.items() if len(values) > 1}
        for (a, left), (b, right) in itertools.combinations(steps.items(), 2):
            points += [{**here, a: x, b: y} for x in left for y in right]
        found = dict.fromkeys(c for p in points if (c := self._make(family, p)) and c != candidate)
        return sorted(found, key=self.model.predict)

    def draw(self, rng: random.Random) -> Candidate | None:
        # A random legal candidate, each kernel and each of its points as likely as any other; None if none is found
        for _ in range(DRAWS if self._parts else 0):
            family, axes = rng.choice(self._parts)
            if found := self._make(family, {name: rng.choice(values) for name, values in axes.items()}):
                return found
        return None

    def _make(self, family: SearchedFamily, point: Point) -> Candidate | None:
        config = family.at(self.device, self.desc, point)
        return Candidate(family, config) if config is not None else None


def _points(axes: Axes) -> Iterator[Point]:
    """Yield every combination of parameters, legal or not."""
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def _steps(values: tuple[int, ...], at: int) -> list[int]:
    """Return the next smaller and the next larger value, where they exist."""
    ordered = sorted(values)
    below, above = [v for v in ordered if v < at], [v for v in ordered if v > at]
    return below[-1:] + above[:1]
