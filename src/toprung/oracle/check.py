"""Operands that give wrong kernels away, the float64 oracle, and ``verify``.

Every input lies between guards of NaN, with NaN in the gap behind each row: a kernel that reads outside it computes NaN. The
output lies among ordinary numbers, because NaN + x may have the bits of the NaN, and is itself a NaN of our own before the
run wherever a right kernel does not read it: one that writes outside, or leaves an element unwritten, is seen by the bits.

Errors are graded componentwise (Demmel's "Grade A" form): g = max |C − C_ref| / (u·(|α||A||B| + |β||C₀|)), u = 2⁻²⁴.
Every comparison is written so that NaN fails. Where the terms of sums have one sign, their bias is judged, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from toprung.oracle.bias import bias
from toprung.oracle.data import DISTRIBUTIONS, Distribution
from toprung.oracle.precision import precision as find_precision
from toprung.oracle.problem import F32, F64, PANEL, UNIT_ROUNDOFF, Matrix, Problem

GUARD = 1024
"""Elements of guard in front of and behind every operand: 4 KiB, which any device's alignment divides."""

POISON = np.uint32(0x7FC0DEAD)
"""Bits of the NaN in and around inputs that a right kernel does not read."""

UNWRITTEN = np.uint32(0x7FC0FADE)
"""Bits of the NaN in an output that a right kernel does not read; another, so that a NaN read from an input counts as written."""

CANARY = np.uint32(0x3F9E0651)
"""Bits of the number around an output, about 1.23: adding a product to it changes it."""

WHOLE_UP_TO = 4096
"""Outputs with more rows or columns than this are checked on sampled rows and columns, and by Freivalds' test as a whole."""

SAMPLED, MOST_SAMPLED = 64, 1 << 20
"""Rows and columns of an output that are sampled, and elements of them from which on there are fewer: of the many short rows of a
batch a column has millions, and each kernel is compared with each."""
FLOAT32_MAX = float(np.finfo(np.float32).max)


def encoded(values: F32, dtype: str) -> np.ndarray[Any, Any]:
    """Return numbers as a device has them, rounded to nearest; of bfloat16, which NumPy lacks, the bits.

    NaN stays NaN; those of bfloat16 must have bits of their fraction among the upper ones, as ``POISON`` does.
    """
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> 16
    return np.where(np.isnan(values), bits >> 16, rounded).astype(np.uint16)


def decoded(stored: np.ndarray[Any, Any], dtype: str) -> F32:
    """Return as float32 what ``encoded`` returned."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def backing(matrix: Matrix) -> F32:
    """A flat array that holds a matrix of NaN between two guards."""
    bits = np.full(matrix.extent + 2 * GUARD, CANARY if matrix.output else POISON, np.uint32)
    flat = bits.view(np.float32)
    if matrix.output:
        view(matrix, flat).view(np.uint32)[...] = UNWRITTEN
    return flat


def view(matrix: Matrix, flat: F32) -> F32:
    """The matrix inside its backing array."""
    start = flat[GUARD:]
    return as_strided(start, (matrix.rows, matrix.cols), (4 * matrix.ld, 4))


def surroundings(matrix: Matrix, flat: F32) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The bits of everything in a backing array but the matrix itself; the matrix reads as zero."""
    copy = flat.copy()
    view(matrix, copy)[...] = 0
    return copy.view(np.uint32)


def strayed(matrix: Matrix, now: F32, before: F32) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places of a backing array, outside the matrix, that changed. Without gaps only the guards are looked at."""
    if matrix.ld > matrix.cols:
        return np.flatnonzero(surroundings(matrix, now) != surroundings(matrix, before))
    outside = np.r_[:GUARD, GUARD + matrix.extent : now.size]
    return np.array(outside[now[outside].view(np.uint32) != before[outside].view(np.uint32)], np.int64)


@dataclass(frozen=True)
class Operands:
    """Operands of a problem on the host, each between its guards.

    ``flat``: the backing arrays, by operand; the output's holds β's C, or poison where β = 0.
    """

    problem: Problem
    distribution: Distribution
    seed: int
    flat: Mapping[str, F32]

    @property
    def matrices(self) -> dict[str, F32]:
        """The operands themselves, as strided views."""
        return {m.name: view(m, self.flat[m.name]) for m in self.problem.matrices}


def hostile(problem: Problem, distribution: str | Distribution = "uniform", seed: int = 0) -> Operands:
    """Operands of a distribution, laid out so that a kernel that strays is found out.

    With β = 0 the old C is poison throughout: a kernel that reads it computes NaN. With α = 0 so are A and B.
    """
    chosen = DISTRIBUTIONS[distribution] if isinstance(distribution, str) else distribution
    scalars = problem.describe()
    values = chosen.operands(problem, seed, old=scalars.get("beta", 1) != 0)
    flat = {}
    for m in problem.matrices:
        flat[m.name] = backing(m)
        if scalars.get("beta" if m.output else "alpha", 1) != 0:
            view(m, flat[m.name])[...] = decoded(encoded(values[m.name], m.dtype), m.dtype)
    return Operands(problem, chosen, seed, flat)


@dataclass(frozen=True)
class Verdict:
    """Verdict of ``verify``.

    Attributes
    ----------
    right : whether everything held
    grade : the grade ratio g
    frobenius : ‖C − C_ref‖_F / ‖C_ref‖_F over the elements checked
    max_relative, median_relative : elementwise relative error
    problems : what did not hold, a sentence each; the first wrong element is in the first that concerns one
    bias, bias_chance : median signed relative error of sums of one sign, and how far it may be off by chance; else None
    """

    right: bool
    grade: float
    frobenius: float
    max_relative: float
    median_relative: float
    problems: tuple[str, ...] = ()
    bias: float | None = None
    bias_chance: float | None = None

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "problems": list(self.problems)}


@dataclass
class Oracle:
    """The float64 answer for one set of operands; made once, asked for every kernel.

    Attributes
    ----------
    whole_up_to : outputs with more rows or columns are checked on sampled ones, and by Freivalds' test as a whole;
        ``WHOLE_UP_TO`` by default
    rows, cols : which rows and columns of the output are compared
    """

    operands: Operands
    whole_up_to: int | None = None
    rows: list[Any] = field(init=False)
    _parts: list[tuple[tuple[Any, Any], F64, F64]] = field(init=False)
    _projection: tuple[F64, F64, F64] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        problem, matrices = self.operands.problem, self.operands.matrices
        out = problem.output
        everything = slice(None)
        if max(out.rows, out.cols) <= (self.whole_up_to or WHOLE_UP_TO):
            blocks: list[tuple[Any, Any]] = [(everything, everything)]
        else:
            blocks = [(_sample(out.rows, out.cols), everything), (everything, _sample(out.cols, out.rows))]
        self._parts = [(block, *problem.reference(matrices, *block)) for block in blocks]
        if len(blocks) > 1:  # Freivalds: for a random vector r, what C·r must be, and how far rounding may move it
            r = np.random.default_rng(self.operands.seed + 1).choice((-1.0, 1.0), (out.cols, 1))
            with np.errstate(invalid="ignore"):
                self._projection = r, *problem.project(matrices, r)

    def verify(self, result: F32, precision: str = "fp32") -> Verdict:
        """Compare what a kernel left in the output's backing array with the reference, and its surroundings with what they were.

        ``precision``: what the kernel promises, by its name in ``toprung.oracle.precision``; it is held to that path's limit.
        """
        limit = self.limit(precision)
        out = self.operands.problem.output
        problems = []
        if (changed := strayed(out, result, self.operands.flat[out.name])).size:
            problems.append(
                f"{changed.size} elements outside {out.name} were written, the first {_where(out, int(changed[0]) - GUARD)}"
            )
        found = view(out, result)
        if found.size and (unwritten := found.view(np.uint32) == UNWRITTEN).any():
            row, col = (int(i) for i in np.argwhere(unwritten)[0])
            problems.append(
                f"{int(unwritten.sum())} elements of {out.name} were never written, the first {out.name}[{row}, {col}]; "
                f"or {out.name} was read though β = 0"  # 0 times the NaN that was there is that NaN again
            )
        grades, norms, relatives, wrongs, sums = [0.0], [], [], [], []
        for (rows, cols), reference, magnitude in self._parts:
            part = found[rows][:, cols]
            grade, wrong, text = self._grade(part, reference, magnitude, limit)
            grades.append(grade)
            if wrong is not None:
                row, col = int(np.arange(out.rows)[rows][wrong[0]]), int(np.arange(out.cols)[cols][wrong[1]])
                wrongs.append((f"{out.name}[{row}, {col}] is {found[row, col]!s}, not {reference[wrong]!s}", text))
            sums.append((part.ravel(), reference.ravel(), magnitude.ravel()))
            finite = np.isfinite(reference)
            with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
                difference = np.abs(part.astype(np.float64) - reference)[finite]
                norms.append((np.sqrt(np.sum(difference**2)), np.sqrt(np.sum(reference[finite] ** 2))))
                relatives.append((difference / np.abs(reference[finite]))[reference[finite] != 0])
        grade = float(np.max(grades))  # max() drops a NaN that is not first; NumPy's keeps it
        problems += [f"{where}: {text.format(grade=grade)}" for where, text in wrongs]
        if self._projection is not None:
            problems += self._freivalds(found, limit)
        off, most = bias(*map(np.concatenate, zip(*sums, strict=True))), self.bias_limit(precision)
        if off and off.beyond(most):
            interval = f"between {off.low:.2g} and {off.high:.2g}"
            problems.append(
                f"sums of one sign are off by {off.median:.2g} of themselves ({interval}), at most {most:.2g} is allowed"
            )
        relative = np.concatenate(relatives) if relatives else np.zeros(0)
        error, norm = (float(np.sqrt(sum(x[i] ** 2 for x in norms))) for i in (0, 1))
        return Verdict(
            not problems, grade, error / norm if norm else error, max_relative=float(relative.max(initial=0.0)),
            median_relative=float(np.median(relative)) if relative.size else 0.0, problems=tuple(problems),
            bias=off.median if off else None, bias_chance=(off.high - off.low) / 2 if off and off.high < math.inf else None,
        )  # fmt: skip

    def limit(self, precision: str = "fp32") -> float:
        """The largest grade ratio accepted of a precision path."""
        return find_precision(precision).limit(self.operands.problem.depth, self.operands.distribution.grade)

    def bias_limit(self, precision: str = "fp32") -> float:
        """Return the largest bias accepted of a precision path."""
        problem, near_one = self.operands.problem, 2 * (self.operands.distribution.name == "near-one")
        return find_precision(precision).bias_limit(problem.depth, problem.describe().get("alpha", 1.0), near_one)

    def _grade(self, part: F32, reference: F64, magnitude: F64, limit: float) -> tuple[float, tuple[int, int] | None, str]:
        """The worst grade ratio, and the first element that is not acceptable with the reason; its ``{grade}`` is all of C's."""
        if not part.size:
            return 0.0, None, ""
        limit = 0.0 if self.operands.distribution.exact else limit
        regular = np.isfinite(reference) & np.isfinite(magnitude) & (magnitude <= FLOAT32_MAX)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            difference = np.abs(part.astype(np.float64) - reference)
            # below the normal range fp32 rounds to a fixed step: 2^-150 is half of it
            ratio = difference / np.maximum(UNIT_ROUNDOFF * magnitude, 2.0**-150)
            same_class = (np.isnan(part) & np.isnan(reference)) | (part.astype(np.float64) == reference)
        special = ~regular & (np.isnan(reference) | np.isinf(reference))
        fits = np.where(special, same_class, ratio <= limit)
        fits &= np.where(magnitude == 0, part == 0, True)
        fits |= ~regular & ~special  # fp32 may overflow here where float64 does not: either is right
        grade = float(np.max(ratio[regular])) if regular.any() else 0.0
        if fits.all():
            return grade, None, ""
        row, col = (int(i) for i in np.argwhere(~fits)[0])
        reason = f"grade ratio {{grade:.2g}} at worst, where at most {limit:.3g} is allowed"
        if special[row, col]:
            reason = "Inf and NaN must come out as fp32 arithmetic gives them"
        return grade, (row, col), f"{reason}; {int((~fits).sum())} of {fits.size} elements are wrong"

    def _freivalds(self, found: F32, limit: float) -> list[str]:
        assert self._projection is not None
        r, expected, bound = self._projection
        projected = np.empty_like(expected)
        slack = limit * UNIT_ROUNDOFF * bound
        with np.errstate(invalid="ignore"):
            for i in range(0, found.shape[0], PANEL):
                projected[i : i + PANEL] = found[i : i + PANEL].astype(np.float64) @ r
            fits = np.abs(projected - expected) <= slack
        fits |= ~(bound <= FLOAT32_MAX)  # Inf and NaN belong in this row: their classes are compared where it is sampled
        if fits.all():
            return []
        return [f"Freivalds' test fails in {int((~fits).sum())} rows, the first {int(np.argmin(fits))}"]


def _sample(count: int, long: int = 1) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return at most ``SAMPLED`` indices below ``count``, both edges among them, of rows or columns that are ``long``."""
    edges = np.array([0, 1, count - 2, count - 1])
    drawn = np.random.default_rng(count).choice(count, min(SAMPLED, count), replace=False)
    others = max(0, min(SAMPLED, MOST_SAMPLED // max(long, 1)) - 4)
    return np.unique(np.concatenate((drawn[:others], edges[(edges >= 0) & (edges < count)])))


def _where(matrix: Matrix, offset: int) -> str:
    """Return the place of a flat offset as readable text."""
    if offset < 0:
        return f"{-offset} elements in front of it"
    if offset >= matrix.extent:
        return f"{offset - matrix.extent + 1} elements behind it"
    return f"in the gap behind row {offset // matrix.ld}"
