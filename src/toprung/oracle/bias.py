"""Bias of results: the share of themselves by which sums of terms of one sign are all too large, or all too small.

Rounding to nearest is off to either side equally often, and averages out in whatever adds results up. Truncation does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.oracle.problem import F64

CHANCE = 5.0
"""Standard errors of the median within which a bias is by chance: an unbiased result is beyond them once in two million."""
SAMPLED = 1 << 20
"""Sums that are looked at where there are more: their median is known to about 1/160 of the errors' standard deviation."""
SMALLEST = 2.0**-102
"""Sums below it may have lost terms to fp32's normal range, 2⁻¹²⁶, where kernels may round them to zero."""


@dataclass(frozen=True)
class Bias:
    """Median signed relative error, and its interval by chance.

    Attributes
    ----------
    median : of result / float64 − 1 over sums whose terms have one sign; below 0 where results are too small
    low, high : interval of the median, infinite where there are too few different sums
    """

    median: float
    low: float
    high: float

    def beyond(self, limit: float) -> bool:
        """Return True if no chance explains that the bias is larger than a limit."""
        return self.low > limit or self.high < -limit


def bias(found: Any, reference: F64, magnitude: F64) -> Bias | None:
    """Return the bias of results; None where no sum has terms of one sign.

    The interval needs no assumption on the errors: of n sums as many are above the median as below it, give or take √n/2, so it
    reaches over ``CHANCE``·√n/2 of the sorted errors to each side. Equal sums have equal errors, and count once in n.

    Parameters
    ----------
    found : results, of any float type
    reference, magnitude : the sums in float64, and the sums of their terms' absolute values
    """
    size = np.abs(reference)
    with np.errstate(invalid="ignore"):
        counted = np.isfinite(found) & np.isfinite(size) & (size >= SMALLEST) & (size >= (1 - 2.0**-20) * magnitude)
    want = reference[counted]
    some = slice(None, None, -(-want.size // SAMPLED) | 1)  # odd, so that no column is left out
    want, got = want[some], found[counted][some]
    if not want.size:
        return None
    half = CHANCE / (2 * math.sqrt(np.unique(want).size))
    low, median, high = np.quantile(got.astype(np.float64) / want - 1, (max(0.0, 0.5 - half), 0.5, min(1.0, 0.5 + half)))
    return Bias(float(median), *((float(low), float(high)) if half < 0.5 else (-math.inf, math.inf)))
