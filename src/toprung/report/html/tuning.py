"""A report's view of a tuner's record (``kind`` ``tune``, see docs/tuning.md): the best so far of each shape over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toprung.lab.harness.results import problem_name


@dataclass(frozen=True)
class Gain:
    """A moment at which a shape had a new best.

    Attributes
    ----------
    elapsed : seconds since the run began
    gflops : of the best there was then
    what : its kernel and block where it stayed the best; else empty
    """

    problem: str
    elapsed: float
    gflops: float
    what: str


def read_tuning(content: Mapping[str, Any]) -> Iterator[Gain]:
    """Yield every gain of every shape; KeyError, TypeError or ValueError where the record is damaged."""
    for shape in content["shapes"]:
        problem, best = shape["problem"], shape["best"]
        flops = 2.0 * math.prod(float(problem[k]) for k in "MNK" if k in problem) * float(problem.get("batch", 1))
        trace = [(float(elapsed), float(seconds)) for elapsed, seconds in shape["trace"] if seconds is not None]
        for i, (elapsed, seconds) in enumerate(trace):
            if not (0 <= elapsed < math.inf and 0 < seconds < math.inf and 0 < flops < math.inf):
                raise ValueError("a gain's time or size is no positive number")
            tile = best["tile"] if best and i == len(trace) - 1 else {}
            block = "×".join(str(tile[k]) for k in ("BM", "BN", "BK") if k in tile)
            yield Gain(problem_name(problem), elapsed, flops / seconds / 1e9, f"{best['kernel']} {block}".strip() if tile else "")
