"""A space whose every point was timed beforehand: strategies are compared on it without a device, at equal evaluations."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toprung.blas.choice import Choice
from toprung.blas.tunable import Axes
from toprung.tune.search import Strategy
from toprung.tune.trial import choice_of

NEAREST = 16
"""Neighbours of a point in a table, where few points differ in one parameter alone."""


class Table:
    """Choices of one kernel with their seconds; what failed took infinitely long.

    Parameters
    ----------
    seconds : of every choice
    predict : orders the starts; without it they come as they are listed
    """

    def __init__(self, seconds: Mapping[Choice, float], predict: Callable[[Choice], float] | None = None) -> None:
        self.seconds = dict(seconds)
        self._points = {c: {**(c.tile.given() if c.tile else {}), **dict(c.options)} for c in seconds}
        names = list(dict.fromkeys(n for p in self._points.values() for n in p))
        self.axes: Axes = {n: tuple(sorted({p.get(n, 1) for p in self._points.values()})) for n in names}
        self._by_point = {self._key(p): c for c, p in self._points.items()}
        self._order = sorted(seconds, key=predict) if predict else list(seconds)
        self._predict = predict

    @staticmethod
    def of(tiles: Sequence[Mapping[str, Any]], predict: Callable[[Choice], float] | None = None) -> Table:
        """From entries as ``benchmarks/rank.py`` stores them."""
        seconds = {}
        for one in tiles:
            choice = choice_of({"kernel": "gemm", **{k: one[k] for k in ("tile", "options")}})
            seconds[choice] = statistics.median(one["seconds"]) if one["seconds"] else float("inf")
        return Table(seconds, predict)

    def ranked(self) -> Iterator[Choice]:
        """By the prediction."""
        return iter(self._order)

    @property
    def size(self) -> int:
        """All of it."""
        return len(self._order)

    def all(self) -> Iterator[Choice]:
        """The same."""
        return self.ranked()

    def neighbours(self, choice: Choice) -> list[Choice]:
        """The nearest: those that differ in the fewest parameters, then by the fewest steps."""
        here = self._points[choice]
        near = sorted((c for c in self._points if c != choice), key=lambda c: self._far(here, self._points[c]))[:NEAREST]
        return sorted(near, key=self._predict) if self._predict else near

    def draw(self, rng: random.Random) -> Choice | None:
        """Any."""
        return rng.choice(self._order) if self._order else None

    def at(self, point: Mapping[str, int]) -> Choice | None:
        """The choice of a point, or of the nearest that was timed: a sample has next to none of the points of its axes."""
        if (found := self._by_point.get(self._key(point))) is not None:
            return found
        return min(self._order, key=lambda c: self._far(point, self._points[c]), default=None)

    def _far(self, here: Mapping[str, int], there: Mapping[str, int]) -> tuple[int, int]:
        steps = [abs(v.index(here.get(n, 1)) - v.index(there.get(n, 1))) for n, v in self.axes.items()]
        return sum(s > 0 for s in steps), sum(steps)

    def _key(self, point: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(point.get(n, 1) for n in self.axes)


def course(table: Table, search: Strategy, evaluations: int) -> list[float]:
    """The best so far after each evaluation; shorter where a strategy ends."""
    best, found = float("inf"), []
    for _ in range(evaluations):
        choice = search.ask()
        if choice is None:
            break
        search.tell(choice, table.seconds[choice])
        best = min(best, table.seconds[choice])
        found.append(best)
    return found
