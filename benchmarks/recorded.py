"""A search space whose points were all timed beforehand, to compare strategies without a device at equal evaluations."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toprung.dispatch.selection import Candidate, decoded
from toprung.kernels.base import Axes
from toprung.tune.search import Strategy

NEAREST = 16
"""Number of neighbours of a point in a table, where few points differ in one parameter alone."""


class Table:
    """Candidates of one kernel with their seconds; a failed one counts as infinitely slow.

    Parameters
    ----------
    seconds : measured seconds of every candidate
    predict : cost model that orders the candidates; without it they keep the order of ``seconds``
    """

    def __init__(self, seconds: Mapping[Candidate, float], predict: Callable[[Candidate], float] | None = None) -> None:
        self.seconds = dict(seconds)
        self._points = {c: {**c.encode()["tile"], **c.encode()["options"]} for c in seconds}
        names = list(dict.fromkeys(n for p in self._points.values() for n in p))
        self.axes: Axes = {n: tuple(sorted({p.get(n, 1) for p in self._points.values()})) for n in names}
        self._order = sorted(seconds, key=predict) if predict else list(seconds)
        self._predict = predict

    @staticmethod
    def of(tiles: Sequence[Mapping[str, Any]], predict: Callable[[Candidate], float] | None = None) -> Table:
        """Return the table of entries as ``benchmarks/rank.py`` stores them."""
        seconds = {}
        for one in tiles:
            candidate = decoded({"kernel": "gemm", **{k: one[k] for k in ("tile", "options")}})
            seconds[candidate] = statistics.median(one["seconds"]) if one["seconds"] else float("inf")
        return Table(seconds, predict)

    def ranked(self) -> Iterator[Candidate]:
        """Return the candidates in predicted order, the fastest first."""
        return iter(self._order)

    @property
    def size(self) -> int:
        """Number of candidates."""
        return len(self._order)

    def all(self) -> Iterator[Candidate]:
        """Return every candidate once."""
        return self.ranked()

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Return the ``NEAREST`` nearest candidates: those that differ in the fewest parameters, then by the fewest steps."""
        here = self._points[candidate]
        near = sorted((c for c in self._points if c != candidate), key=lambda c: self._far(here, self._points[c]))[:NEAREST]
        return sorted(near, key=self._predict) if self._predict else near

    def draw(self, rng: random.Random) -> Candidate | None:
        """Return a random candidate, None if the table is empty."""
        return rng.choice(self._order) if self._order else None

    def _far(self, here: Mapping[str, int], there: Mapping[str, int]) -> tuple[int, int]:
        steps = [abs(v.index(here.get(n, 1)) - v.index(there.get(n, 1))) for n, v in self.axes.items()]
        return sum(s > 0 for s in steps), sum(steps)


def course(table: Table, search: Strategy, evaluations: int) -> list[float]:
    """Return the best seconds so far after each evaluation; fewer than ``evaluations`` where a strategy ends early."""
    best, found = float("inf"), []
    for _ in range(evaluations):
        candidate = search.ask()
        if candidate is None:
            break
        search.tell(candidate, table.seconds[candidate])
        best = min(best, table.seconds[candidate])
        found.append(best)
    return found
