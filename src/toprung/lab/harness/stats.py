"""Bootstrap intervals: how far a median or a ratio of medians can be trusted.

The interval is the percentile one: samples are drawn again with replacement ``DRAWS`` times, with a fixed seed so that the same
samples give the same interval, and the middle 95 % of the statistic is what is given. Within a run the samples of two
competitors are paired turn by turn, and pairs are drawn, because what disturbs the machine disturbs both; between two runs
nothing is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A figure and the interval it is trusted to lie in."""

    value: float
    low: float
    high: float


def paired_ratio(of: Sequence[float], to: Sequence[float]) -> Interval:
    """Median over the turns of ``of`` / ``to``; samples of one turn have one place."""
    ratios = np.array([a / b for a, b in zip(of, to, strict=False)])
    drawn = np.random.default_rng(0).integers(0, ratios.size, (DRAWS, ratios.size))
    return _interval(float(np.median(ratios)), np.median(ratios[drawn], axis=1))


def ratio(of: Sequence[float], to: Sequence[float]) -> Interval:
    """Median of ``of`` / median of ``to``, from runs that have nothing to do with each other."""
    rng, a, b = np.random.default_rng(0), np.array(of), np.array(to)
    medians = [np.median(x[rng.integers(0, x.size, (DRAWS, x.size))], axis=1) for x in (a, b)]
    return _interval(float(np.median(a) / np.median(b)), medians[0] / medians[1])


def _interval(value: float, drawn: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Interval:
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value, float(low), float(high))
