"""The form of what a tuner stores, as far as a report shows it: a record of ``kind`` ``tune`` with ``tunings``, one a problem.

A tuning has ``problem`` (as measurements have it) and ``trials`` in the order in which they were timed. A trial has
``elapsed`` (seconds since the search began), ``seconds`` (a call's median; null where the tile was refused or wrong) and
``what`` (the tile, as a person writes it). ``budget_seconds`` may say how long the search was allowed to take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toprung.results import problem_name


@dataclass(frozen=True)
class Trial:
    """One tile that was tried.

    Attributes
    ----------
    elapsed : seconds since the search began
    gflops, best : its speed, and that of the best so far
    """

    problem: str
    elapsed: float
    what: str
    gflops: float
    best: float


def read_tuning(content: Mapping[str, Any]) -> list[Trial]:
    """Every trial that was timed; KeyError, TypeError or ValueError where the record is damaged."""
    return list(_trials(content))


def _trials(content: Mapping[str, Any]) -> Iterator[Trial]:
    for one in content["tunings"]:
        problem = one["problem"]
        flops = 2.0 * math.prod(float(problem[k]) for k in "MNK" if k in problem) * float(problem.get("batch", 1))
        best = 0.0
        for trial in one["trials"]:
            if trial["seconds"] is None:
                continue
            elapsed, speed = float(trial["elapsed"]), flops / float(trial["seconds"]) / 1e9
            if not (0 <= elapsed < math.inf and 0 < speed < math.inf):
                raise ValueError("a trial's time is no positive number")
            best = max(best, speed)
            yield Trial(problem_name(problem), elapsed, str(trial["what"]), speed, best)
