"""The promise: on any shape the routed choice is within a few percent of the best there is, measured in the same run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from toprung.blas.choice import Choice
from toprung.blas.fp32x import FP32X
from toprung.blas.problems import call_of, class_of
from toprung.blas.route import unsuited
from toprung.blas.tuned import known, settled
from toprung.device import Device
from toprung.problem import Problem
from toprung.routines.gemv import Gemv
from toprung.stats import Interval, paired_ratio
from toprung.store import Store
from toprung.tune.compiler import Compiler
from toprung.tune.executors.base import Lane
from toprung.tune.plan import measure, surviving
from toprung.tune.rivals import contenders, planned, routed
from toprung.tune.trial import Sampled, Trial, choice_of, describe, pairs, plain

WITHIN = 1.05
"""How many times as long as the best a routed choice may take."""

SHAPES = 300

TURNS, LEAST = 11, 5

AHEAD = 24
"""Shapes whose binaries are under way while another is measured."""


@dataclass(frozen=True)
class Checked:
    """One shape on one precision path.

    Attributes
    ----------
    precision : what was asked for: ``fp32``; ``fp32x``, whose tiles are compared; ``auto``, where plain fp32 is compared, too
    routed, best : what runs, and the fastest of what was measured
    why : the receipt's sentence
    ratio : time of the routed choice / time of the best, with its interval
    broken : whether that is more than promised
    trouble : why nothing can be said
    sampled, again : what was measured; and, where that says broken, once more of the choice and of what was ahead of it
    """

    problem: Problem
    precision: str
    routed: Choice
    why: str
    best: Choice | None = None
    ratio: Interval | None = None
    broken: bool = False
    trouble: str = ""
    sampled: tuple[tuple[Choice, Sampled], ...] = field(default=(), repr=False)
    again: tuple[tuple[Choice, Sampled], ...] = field(default=(), repr=False)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "problem": self.problem.describe(), "precision": self.precision, "class": class_of(call_of(self.problem)),
            "routed": describe(self.routed),
            "why": self.why, "best": describe(self.best) if self.best else None,
            "ratio": vars(self.ratio) if self.ratio else None, "broken": self.broken, "trouble": self.trouble,
            "measured": _described(self.sampled), "again": _described(self.again),
        }  # fmt: skip


def _described(sampled: Sequence[tuple[Choice, Sampled]]) -> list[dict[str, Any]]:
    return [
        {
            **describe(c), "status": s.status, "message": s.message, "seconds": list(s.seconds),
            "device_seconds": list(s.device_seconds), "host_seconds": s.host_seconds,
        }
        for c, s in sampled
    ]  # fmt: skip


def asked(device: Device, problem: Problem, precision: str) -> list[str]:
    """What is checked of a problem: plain fp32 and, on a device that has fp32x, what ``auto`` takes; or one of the paths."""
    if unsuited(device, call_of(problem)):
        return [] if precision == FP32X else ["fp32"]
    return ["fp32", "auto"] if precision == "auto" else [precision]


def check(
    lane: Lane, problems: Sequence[Problem], store: Store, within: float = WITHIN, limit: float = 20.0, seed: int = 0,
    precision: str = "auto", measuring: bool = False,
) -> Iterator[Checked]:  # fmt: skip
    """Measure each shape on each path of ``asked``; yields one after the other.

    ``measuring``: each is planned by measuring first, into ``store``, which must stand in for the user's own and is emptied again.
    """
    device, machine = lane.device, lane.machine
    fingerprint = lane.start()
    compiler = Compiler(device)
    plans: list[tuple[Problem, str, Choice, list[Choice], list[Future[str] | None]]] = []
    ranking: deque[tuple[Problem, str, Future[list[Choice]] | None]] = deque()
    left = ((p, path) for p in problems for path in asked(device, p, precision))
    try:
        while True:
            ranking.extend(
                (p, path, compiler.rank(p) if path == "fp32" or measuring else None)
                for p, path in islice(left, max(0, AHEAD - len(ranking)))
            )
            while ranking and len(plans) < AHEAD:
                problem, path, order = ranking.popleft()
                mine = routed(device, problem, path)
                if measuring:
                    others = [c for c in planned(device, problem, path, store, machine, order) if c != plain(mine)]
                else:
                    mine, others = contenders(device, problem, path, mine, store, machine, order)
                plans.append((problem, path, mine, others, [compiler.ahead(c, fingerprint) for c in (mine, *others)]))
            if not plans:
                return
            problem, path, mine, others, futures = plans.pop(0)
            for future in futures:
                if future is not None:
                    future.exception()  # the worker finds out what is wrong with it
            if measuring:
                mine, others = _measured(lane, problem, path, mine, others, store, seed)
            yield _one(lane, problem, path, mine, others, within, limit, seed)
    finally:
        compiler.close()


def _measured(
    lane: Lane, problem: Problem, path: str, mine: Choice, others: list[Choice], store: Store, seed: int
) -> tuple[Choice, list[Choice]]:
    """What a program gets once it has planned by measuring, and what was right beside that. The samples are not used again."""
    if isinstance(problem, Gemv):  # NumPy is measured for arrays on the host, and those are not what ``routed`` is of
        others = [c for c in others if c.kernel != "numpy"]
    if settled(lane.device, call_of(problem), path):
        return mine, others
    before = plain(mine)
    unmeasured = measure(lane, problem, (before, *others), store, seed)
    known(lane.device)  # it is read again at once
    mine = routed(lane.device, problem, path)
    if unmeasured:
        mine = replace(mine, why=f"{mine.why}; not measured: {unmeasured}")
    wrong = [choice_of(e.candidate) for e in store.entries() if e.status != "right"]
    store.clear()  # so that each shape is planned as if it were the first
    known(lane.device)
    return mine, [c for c in (before, *others) if c != plain(mine) and c not in wrong]


def _one(
    lane: Lane, problem: Problem, path: str, mine: Choice, others: Sequence[Choice], within: float, limit: float, seed: int
) -> Checked:
    """A shape; what takes the worker down is left out, and the others are measured all the same."""
    trial = Trial(problem, (plain(mine), *others), TURNS, LEAST, decided=within, hopeless=1.2, limit=limit, seed=seed)
    outcome, found = surviving(lane, trial, 1)
    if outcome.trouble:
        return Checked(problem, path, mine, mine.why, trouble=outcome.trouble)
    sampled = tuple(found)
    own = outcome.sampled[0]
    if own.status != "right" or not own.seconds:
        reason = f"the routed choice is {own.status or 'not measured'}: {own.message}"
        return Checked(problem, path, mine, mine.why, broken=own.status == "wrong", trouble=reason, sampled=sampled)
    ratios = {c: r for c, s in sampled[1:] if s.status == "right" and (r := _ratio(own, s)) is not None}
    again: tuple[tuple[Choice, Sampled], ...] = ()
    if ahead := [c for c, r in ratios.items() if r.value > within]:
        # where the host is disturbed now and then, some look so that are not: a second look must say it, too
        both = (plain(mine), *ahead)
        second = lane.run(replace(trial, choices=both)).sampled
        if len(second) == len(both) and all(s.status == "right" and s.seconds for s in second):
            again = tuple(zip(both, second, strict=True))
            repeated = {c: r for c, s in again[1:] if (r := _ratio(second[0], s)) is not None}
            ratios |= {c: min(r, ratios[c], key=lambda one: one.value) for c, r in repeated.items()}
    best, ratio = max(ratios.items(), key=lambda one: one[1].value, default=(mine, Interval(1, 1, 1)))
    if ratio.value <= 1:
        best, ratio = mine, Interval(1, 1, 1)
    return Checked(problem, path, mine, mine.why, best, ratio, ratio.value > within, "", sampled, again)


def _ratio(own: Sampled, other: Sampled) -> Interval | None:
    mine, theirs = pairs(own, other)
    if mine:
        return paired_ratio(mine, theirs)
    return None if math.inf in (own.median, other.median) else Interval(*(own.median / other.median,) * 3)
