"""Named input distributions, which fill operands: the ones that results are checked on.

The families with wide exponent ranges are those of the published work on emulating fp32 with matrix units; the built ones
provoke what rounding and special values do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from toprung.oracle.problem import F32, Problem

Shape = tuple[int, int]
Fill = Callable[[np.random.Generator, Shape], F32]

SIGNED_GRADE = 16.0
"""Grade ratio that a sum with random signs stays under in fp32 at any K; TF32 or fp16 operands do not."""


@dataclass(frozen=True)
class Distribution:
    """Distribution of the values of each operand.

    Attributes
    ----------
    fills : a filling for each operand; an operand without one of its own takes the first's
    grade : largest grade ratio accepted whatever K is; None leaves only the hard limit K + 2
    exact : whether the fp32 result must equal the reference bit for bit
    """

    name: str
    fills: tuple[Fill, ...]
    grade: float | None = None
    exact: bool = False

    def operands(self, problem: Problem, seed: int = 0, old: bool = True) -> dict[str, F32]:
        """A matrix for every operand of the problem, the output's old content included unless ``old`` is False."""
        rng = np.random.default_rng(seed)
        fills = dict(enumerate(self.fills))
        return {
            m.name: fills.get(i, self.fills[0])(rng, (m.rows, m.cols))
            for i, m in enumerate(problem.matrices)
            if old or not m.output
        }


def _uniform(low: float, high: float) -> Fill:
    return lambda rng, shape: rng.uniform(low, high, shape).astype(np.float32)


def _normal(rng: np.random.Generator, shape: Shape) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


def _spread(phi: float) -> Fill:
    """(U − 0.5)·exp(φ·N(0,1))."""
    return lambda rng, shape: ((rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))).astype(np.float32)


def _exponents(low: float, high: float) -> Fill:
    """±2^U(low, high)."""
    return lambda rng, shape: (rng.choice((-1.0, 1.0), shape) * 2.0 ** rng.uniform(low, high, shape)).astype(np.float32)


def _subnormal(rng: np.random.Generator, shape: Shape) -> F32:
    return (rng.uniform(-1, 1, shape) * 2.0**-127).astype(np.float32)


def _zeros(rng: np.random.Generator, shape: Shape) -> F32:
    return np.zeros(shape, np.float32)


def _huge(axis: int) -> Fill:
    """U(−1,1) with one row (axis 0) or one column (axis 1) 2²⁰ times as large."""

    def fill(rng: np.random.Generator, shape: Shape) -> F32:
        values = rng.uniform(-1, 1, shape)
        if shape[axis]:
            index = [slice(None), slice(None)]
            index[axis] = slice(shape[axis] // 2, shape[axis] // 2 + 1)
            values[tuple(index)] *= 2.0**20
        return values.astype(np.float32)

    return fill


def _cancelling_rows(rng: np.random.Generator, shape: Shape) -> F32:
    """Rows whose second half mirrors the first with the sign turned."""
    half = rng.uniform(-1, 1, (shape[0], shape[1] // 2)).astype(np.float32)
    middle = np.zeros((shape[0], shape[1] % 2), np.float32)
    return np.concatenate((half, middle, -half), axis=1)


def _mirrored_columns(rng: np.random.Generator, shape: Shape) -> F32:
    """Columns whose second half repeats the first but for the last bits."""
    half = rng.uniform(0.5, 1, (shape[0] // 2, shape[1])).astype(np.float32)
    middle = np.zeros((shape[0] % 2, shape[1]), np.float32)
    return np.concatenate((half, middle, np.nextafter(half, np.float32(2))), axis=0)


def _planted(value: float) -> Fill:
    """U(−1,1) with one special value."""

    def fill(rng: np.random.Generator, shape: Shape) -> F32:
        values = rng.uniform(-1, 1, shape).astype(np.float32)
        if values.size:
            values[shape[0] // 2, shape[1] // 3] = value
        return values

    return fill


_PLAIN = _uniform(-1, 1)
_ALL = (
    Distribution("uniform", (_PLAIN,), SIGNED_GRADE),
    Distribution("normal", (_normal,), SIGNED_GRADE),
    Distribution("positive", (_uniform(0, 1),)),
    Distribution("lognormal", (lambda rng, shape: np.exp(rng.standard_normal(shape)).astype(np.float32),)),
    Distribution("relu", (lambda rng, shape: np.maximum(_normal(rng, shape), np.float32(0)),)),
    Distribution("near-one", (lambda rng, shape: (1 + 0.001 * rng.random(shape)).astype(np.float32),)),
    Distribution("phi0.5", (_spread(0.5),)),
    Distribution("phi1", (_spread(1),)),
    Distribution("phi2", (_spread(2),)),
    Distribution("phi4", (_spread(4),)),
    Distribution("T1", (_exponents(-15, 14),)),
    Distribution("T2", (_exponents(-15, 14), _exponents(-100, -35))),
    Distribution("T3", (_exponents(-35, -15),)),
    Distribution("T4", (_exponents(-100, -35), _exponents(-15, 14), _exponents(-100, -35))),
    Distribution("huge-row", (_huge(0), _PLAIN, _PLAIN)),
    Distribution("huge-column", (_PLAIN, _huge(1), _PLAIN)),
    Distribution("subnormal", (_subnormal, _PLAIN, _subnormal)),
    Distribution("integers", (lambda rng, shape: rng.integers(-4, 5, shape).astype(np.float32),), exact=True),
    Distribution("cancelling", (_cancelling_rows, _mirrored_columns, _zeros)),
    Distribution("inf", (_planted(np.inf), _PLAIN, _PLAIN)),
    Distribution("-inf", (_PLAIN, _planted(-np.inf), _PLAIN)),
    Distribution("nan", (_planted(np.nan), _PLAIN, _PLAIN)),
    Distribution("zeros", (_zeros,), exact=True),
)

DISTRIBUTIONS: Mapping[str, Distribution] = MappingProxyType({d.name: d for d in _ALL})
"""Every distribution by name."""
ONE_SIGNED = ("positive", "lognormal", "relu", "near-one")
"""Distributions whose sums have terms of one sign, so that a bias shows."""
