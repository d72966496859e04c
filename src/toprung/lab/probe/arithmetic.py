"""Sequences that the host can follow to the last bit: what the arithmetic kernels compute, computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.oracle.problem import F32, F64

Multiply = Callable[[F32, F32, F32], F32]


def fused(a: F32, b: F32, c: F32) -> F32:
    """Return a · b + c with one rounding, as a fused multiply-add has it.

    In float64 the product is exact. Their sum is rounded to odd (Boldo, Melquiond 2008), so that rounding it once more, to
    float32, gives what one rounding would have given.
    """
    p, q = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s: F64 = p + q
    t = s - p
    error = (p - (s - t)) + (q - t)  # Knuth's two-sum: s + error is exact
    bits = s.view(np.int64)
    even = (bits & 1 == 0) & (error != 0)
    outwards = np.where((error > 0) == (s > 0), 1, -1)
    return (bits + np.where(even, outwards, 0)).view(np.float64).astype(np.float32)


def separate(a: F32, b: F32, c: F32) -> F32:
    """Return a · b + c with two roundings, as a CPU without fused multiply-adds computes it."""
    return a * b + c


def chaos(x: F32, c: F32, steps: int, multiply: Multiply = fused) -> F32:
    """Return x after ``steps`` iterations of x ← x · x + c."""
    for _ in range(steps):
        x = multiply(x, x, c)
    return x


def starts(items: int, seed: int) -> tuple[F32, F32]:
    """Return random starting points, and steps for which the sequence stays random and below 2."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, items).astype(np.float32), rng.uniform(-1.95, -1.6, items).astype(np.float32)


def sampled(items: int, count: int = 16) -> NDArray[Any]:
    """Return some work-items, first and last among them."""
    return np.unique(np.concatenate(([0, items - 1], np.random.default_rng(items).integers(0, items, count))))


def differing(found: NDArray[Any], expected: NDArray[Any], tolerance: NDArray[Any] | float, items: NDArray[Any]) -> str:
    """Return the first of some work-items whose result is too far off, as a sentence; NaN is too far off."""
    fits = np.abs(found.astype(np.float64) - expected) <= tolerance
    if fits.all():
        return ""
    i = np.unravel_index(int(np.argmin(fits)), fits.shape)
    return f"work-item {items[i[0]]} computed {found[i]!s}, not {expected[i]!s}; {int((~fits).sum())} of {fits.size} are wrong"
