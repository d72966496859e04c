"""Check of the promise: on any shape the selected candidate is within a few percent of the best one measured in the same run."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from typing import Any

from toprung.device import Device
from toprung.dispatch import mixed
from toprung.dispatch.select import FASTER, faster_families, paths
from toprung.dispatch.selection import Candidate, Selection, decoded
from toprung.dispatch.tuned import HERE
from toprung.gemm.classes import class_of, problem_class
from toprung.lab.harness.stats import Interval, paired_ratio
from toprung.oracle.gemv import Gemv
from toprung.oracle.problem import Problem
from toprung.oracle.problems import problem_of
from toprung.store import Store
from toprung.tune.candidates import check_candidates, filled, first_use_candidates, selected
from toprung.tune.compiler import COMPILING, Compiler
from toprung.tune.executors.base import Lane
from toprung.tune.plan import measure, surviving
from toprung.tune.rows import Choices
from toprung.tune.trial import Sampled, Trial, pairs

WITHIN = 1.05
"""Promised ratio: time of the selected candidate / time of the best one, at most."""

SHAPES = 300
"""Default number of shapes that a check draws."""

TURNS, LEAST = 11, 3
"""Samples of each candidate: at most, and at least before a comparison may be decided."""

HOST_LIMITED = 20e-6
"""Device seconds below which a host's loop may be the limit, so that a product is looked at by device time alone, too."""

LANES = 4
"""Most lanes of a GPU, each with four cores or more; one measures, others draw operands and verify."""

AHEAD = 24
"""Number of shapes that are ranked and compiled ahead while another is measured."""


Plan = tuple[str, Selection, list[Candidate], list[Future[str] | None]]
"""Path, selection, other candidates of a problem, and the pending compilations of all of them."""


@dataclass(frozen=True)
class Checked:
    """Result of checking one shape on one precision path.

    Attributes
    ----------
    precision : requested path: ``fp32``; ``fp32x``, compared with fp32x candidates only; ``auto``, compared with plain fp32, too
    selected, best : the selected candidate, and the fastest of those measured
    why : reason of the selection, as in the receipt
    ratio : time of the selected candidate / time of the best, with its confidence interval
    broken : True if ``ratio`` exceeds the promise, or the selected candidate is wrong
    trouble : reason why there is no ratio; empty where there is one
    sampled : samples of each candidate
    device_ratio : ``ratio`` by device time alone, of products that take the device less than ``HOST_LIMITED`` seconds; else None.
        Their ``ratio`` is that of a loop on the host
    again : second samples of the selected candidate and those ahead of it, taken where the first ones exceed the promise
    """

    problem: Problem
    precision: str
    selected: Candidate
    why: str
    best: Candidate | None = None
    ratio: Interval | None = None
    broken: bool = False
    trouble: str = ""
    sampled: tuple[tuple[Candidate, Sampled], ...] = field(default=(), repr=False)
    again: tuple[tuple[Candidate, Sampled], ...] = field(default=(), repr=False)
    device_ratio: float | None = None

    @property
    def kind(self) -> str:
        """Class of the product, as ``problem_class`` names it, or ``mixed`` for operands with halves."""
        desc = self.problem.desc
        return "mixed" if not desc.is_vector and desc.is_mixed else problem_class(desc)

    @classmethod
    def read(cls, stored: Mapping[str, Any], choices: Mapping[int, Candidate]) -> Checked:
        """Return the result of a shape in a record, without its samples; ``choices``: the record's candidates by number."""
        best, ratio = stored["best"], stored["ratio"]
        return cls(
            problem_of(stored["problem"]), stored["precision"], choices[stored["routed"]], stored["why"],
            choices[best] if best is not None else None, Interval(**ratio) if ratio else None, stored["broken"], stored["trouble"],
            device_ratio=stored["device_ratio"],
        )  # fmt: skip

    def describe(self, choices: Choices) -> dict[str, Any]:
        """Return the result as JSON-ready data, candidates as their numbers in ``choices``."""
        return {
            "problem": self.problem.describe(), "precision": self.precision, "class": class_of(self.problem.desc),
            "routed": choices[self.selected], "why": self.why, "best": choices[self.best] if self.best else None,
            "ratio": vars(self.ratio) if self.ratio else None, "kind": self.kind, "device_ratio": self.device_ratio,
            "broken": self.broken, "trouble": self.trouble,
            "measured": choices.rows(self.sampled), "again": choices.rows(self.again),
        }  # fmt: skip


def asked(device: Device, problem: Problem, precision: str) -> list[str]:
    """Return the precision paths to check for a problem.

    Where fp32x is supported, ``auto`` stands for both ``fp32`` and ``auto``. Elsewhere only ``fp32`` is checked, and nothing if
    ``precision`` is ``fp32x``. Mixed operands are checked on the path that is asked for, and only where a kernel is selected that
    reads halves as they lie: what converting them first takes is not measured.
    """
    if not (desc := problem.desc).is_vector and desc.is_mixed:  # there is no plain fp32 to tell auto from
        return [] if isinstance(mixed.select(device, desc, precision), str) else [precision]
    if all(f.supports(device, problem.desc) for f in faster_families("auto")):
        return [] if precision in FASTER else ["fp32"]
    return ["fp32", "auto"] if precision == "auto" else [precision]


def check(
    lanes: Sequence[Lane], problems: Sequence[Problem], store: Store, within: float = WITHIN, limit: float = 20.0, seed: int = 0,
    precision: str = "auto", measuring: bool = False, done: int = 0,
) -> Iterator[Checked]:  # fmt: skip
    """Yield the measured result of each problem on each of its paths (see ``asked``), one after the other.

    Parameters
    ----------
    lanes : lanes of one device; where there is one, nothing is planned while it measures
    measuring : autotune each problem first, into ``store``, which must stand in for the user's own and is emptied each time
    done : number of results of earlier parts of this check
    """
    device, machine, fingerprint = lanes[0].device, lanes[0].machine, lanes[0].start()
    compiler, free = Compiler(device), deque(lanes)
    left = islice(((p, path) for p in problems for path in asked(device, p, precision)), done, None)
    waiting = ((p, [path for _, path in paths]) for p, paths in groupby(left, lambda one: one[0]))
    ranking: deque[tuple[Problem, list[str], Future[list[Candidate]] | None]] = deque()
    plans: deque[Callable[[], list[Checked]]] = deque()

    def planned(problem: Problem, path: str, order: Future[list[Candidate]] | None) -> Plan:
        mine = selected(device, problem, path)
        if measuring:
            found = [c for c in first_use_candidates(device, problem, path, store, machine, order) if c != mine.candidate]
        else:
            mine, found = check_candidates(device, problem, path, mine, store, machine, order if path == "fp32" else None)
            found = filled(device, problem, path, mine.candidate, found)
        return path, mine, found, [compiler.ahead(c, problem.desc, fingerprint) for c in (mine.candidate, *found)]

    def measured(problem: Problem, paths: Sequence[Plan]) -> list[Checked]:
        """Check one problem's paths on the lane that is free next."""
        wait([f for plan in paths for f in plan[-1] if f], timeout=COMPILING)  # the worker compiles missing kernels itself
        lane, checked = free.popleft(), list[Checked]()  # there are no more threads than lanes
        try:
            for path, mine, found, _ in paths:
                if measuring:
                    mine, found = _measured(lane, problem, path, mine, found, store, seed)
                checked.append(_one(lane, problem, path, mine, found, within, limit, seed))
        finally:
            free.append(lane)
        return checked

    pool = ThreadPoolExecutor(len(lanes))
    try:
        while True:
            for problem, paths in islice(waiting, max(0, AHEAD - len(ranking))):
                ranking.append((problem, paths, compiler.rank(problem) if measuring or "fp32" in paths else None))
            while ranking and len(plans) < AHEAD:
                problem, paths, order = ranking.popleft()
                one = partial(measured, problem, [planned(problem, path, order) for path in paths])
                plans.append(pool.submit(one).result if len(lanes) > 1 else one)
            if not plans:
                return
            yield from plans.popleft()()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        compiler.close()


def _measured(
    lane: Lane, problem: Problem, path: str, mine: Selection, others: list[Candidate], store: Store, seed: int
) -> tuple[Selection, list[Candidate]]:
    """Return the candidate that a program gets after autotuning, and the other right ones. Autotuning's samples are not reused."""
    if isinstance(problem, Gemv):  # the host's BLAS is measured for arrays on the host, and those are not what ``selected`` is of
        others = [c for c in others if c.family.memory == "device"]
    if HERE.at(lane.device, problem.desc).settled(paths(lane.device, problem.desc, path) or ("fp32",)):
        return mine, others
    before = mine.candidate
    unmeasured = measure(lane, problem, (before, *others), store, seed)
    mine = selected(lane.device, problem, path)
    if unmeasured:
        mine = replace(mine, why=f"{mine.why}; not measured: {unmeasured}")
    wrong = [decoded(e.candidate) for e in store.entries() if e.status != "right"]
    store.clear()  # so that each shape is measured as if it were the first
    return mine, [c for c in (before, *others) if c != mine.candidate and c not in wrong]


def _one(
    lane: Lane, problem: Problem, path: str, mine: Selection, others: Sequence[Candidate], within: float, limit: float, seed: int
) -> Checked:
    """Return the result of one shape; other candidates that take the worker down are left out, and the rest is measured."""
    trial = Trial(problem, (mine.candidate, *others), TURNS, LEAST, decided=within, hopeless=1.2, limit=limit, seed=seed)
    outcome, found = surviving(lane, trial, 1)
    if outcome.trouble:
        return Checked(problem, path, mine.candidate, mine.why, trouble=outcome.trouble)
    sampled = tuple(found)
    own = outcome.sampled[0]
    if own.status != "right" or not own.seconds:
        reason = f"the selected candidate is {own.status or 'not measured'}: {own.message}"
        return Checked(problem, path, mine.candidate, mine.why, broken=own.status == "wrong", trouble=reason, sampled=sampled)
    ratios = {c: r for c, s in sampled[1:] if s.status == "right" and (r := _ratio(own, s)) is not None}
    again: tuple[tuple[Candidate, Sampled], ...] = ()
    if ahead := [c for c, r in ratios.items() if r.value > within]:
        # on a host that is disturbed now and then, some only look faster: a second measurement must confirm it
        both = (mine.candidate, *ahead)
        second = lane.run(replace(trial, candidates=both)).sampled
        if len(second) == len(both) and all(s.status == "right" and s.seconds for s in second):
            again = tuple(zip(both, second, strict=True))
            repeated = {c: r for c, s in again[1:] if (r := _ratio(second[0], s)) is not None}
            ratios |= {c: min(r, ratios[c], key=lambda one: one.value) for c, r in repeated.items()}
    rightly = [s for c, s in sampled[1:] if c in ratios]
    best, ratio = max(ratios.items(), key=lambda one: one[1].value, default=(mine.candidate, Interval(1, 1, 1)))
    if ratio.value <= 1:
        best, ratio = mine.candidate, Interval(1, 1, 1)
    broken = ratio.value > within
    return Checked(problem, path, mine.candidate, mine.why, best, ratio, broken, "", sampled, again, _by_device(own, rightly))


def _by_device(own: Sampled, others: Sequence[Sampled]) -> float | None:
    """Return median device seconds / those of the fastest candidate; None from ``HOST_LIMITED`` on, or without samples."""
    if not own.device_seconds or (mine := statistics.median(own.device_seconds)) >= HOST_LIMITED:
        return None
    return mine / min([mine, *(statistics.median(s.device_seconds) for s in others if s.device_seconds)])


def _ratio(own: Sampled, other: Sampled) -> Interval | None:
    mine, theirs = pairs(own, other)
    if mine:
        return paired_ratio(mine, theirs)
    return None if math.inf in (own.median, other.median) else Interval(*(own.median / other.median,) * 3)
