"""The promise: on any shape the routed choice is within a few percent of the best there is, measured in the same run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from toprung.blas.call import Call
from toprung.blas.choice import Choice
from toprung.blas.choose import by_model, lacking
from toprung.blas.fp32x import FP32X
from toprung.blas.problems import call_of, class_of, sizes_of
from toprung.blas.route import reckoned_choice, route, unsuited
from toprung.blas.tuned import fitted, host_is_faster, is_ours
from toprung.device import Device
from toprung.errors import StoreError
from toprung.problem import Problem
from toprung.routines.gemm import Gemm
from toprung.stats import Interval, paired_ratio
from toprung.store import Machine, Store
from toprung.tune.compiler import Compiler
from toprung.tune.executors.base import Lane
from toprung.tune.model import promising
from toprung.tune.space import CallSpace
from toprung.tune.trial import Sampled, Trial, describe, pairs, plain

WITHIN = 1.05
"""How many times as long as the best a routed choice may take."""

SHAPES = 300

CANDIDATES = 2
"""Choices of the model that are measured beside the routed one, and so many of the store's neighbours."""

FP32X_CANDIDATES = 1
"""The same of fp32x, so that a check of both takes at most a third longer: most of the time is the verification of each choice."""

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
    return [{**describe(c), "status": s.status, "message": s.message, "seconds": list(s.seconds)} for c, s in sampled]


def routed(device: Device, problem: Problem, precision: str = "fp32") -> Choice:
    """What a program gets for a problem: for arrays in the device's memory; on a CPU for NumPy's arrays."""
    call = call_of(problem)
    if device.kind == "cpu" and isinstance(problem, Gemm):
        faster = host_is_faster(device, call)
        if faster is not False:
            measured = (
                "it was faster when both were measured" if faster else "the arrays are on the host, and nothing says ours is faster"
            )
            return Choice("numpy", None, (), f"NumPy's BLAS: {measured}")
    return route(device, call, False, precision)[0]


def asked(device: Device, problem: Problem, precision: str) -> list[str]:
    """What is checked of a problem: plain fp32 and, on a device that has fp32x, what ``auto`` takes; or one of the paths."""
    if unsuited(device, call_of(problem)):
        return [] if precision == FP32X else ["fp32"]
    return ["fp32", "auto"] if precision == "auto" else [precision]


def rivals(device: Device, problem: Problem, store: Store, machine: Machine, precision: str = "fp32") -> list[Choice]:
    """What else might be faster: the model's choices, the store's nearest, the library that is installed.

    Of fp32x what is reckoned for the call and the store's nearest; for ``auto`` also what each path takes.
    """
    call = call_of(problem)
    if precision != "fp32":
        made = [routed(device, problem, path) for path in ("fp32", FP32X)] if precision == "auto" else []
        if precision != "auto" or promising(device, call):
            made += [reckoned_choice(device, call), *_near(device, call, store, machine, FP32X)]
        return list(dict.fromkeys(map(plain, made)))
    found = [plain(by_model(device, call)), *_near(device, call, store, machine, "fp32")]
    found += [plain(c) for c in islice(CallSpace(device, call).ranked(), CANDIDATES)] if device.kind == "cpu" else []
    if device.kind == "gpu" and not lacking(device, call):
        found.append(Choice("cublas", None))
    if device.kind == "cpu" and isinstance(problem, Gemm):
        found.append(Choice("numpy", None))
    return list(dict.fromkeys(found))


def _near(device: Device, call: Call, store: Store, machine: Machine, precision: str) -> list[Choice]:
    """The fastest of the store's nearest shapes on a path, made to fit a call."""
    try:
        near = store.neighbours(machine, class_of(call), sizes_of(call), kept=lambda e: is_ours(e.kernel, precision))
    except StoreError:
        return []
    made = (fitted(device, call, entry, False) for entry in near[: CANDIDATES if precision == "fp32" else FP32X_CANDIDATES])
    return [plain(c) for c in made if isinstance(c, Choice)]


def check(
    lane: Lane, problems: Sequence[Problem], store: Store, within: float = WITHIN, limit: float = 20.0, seed: int = 0,
    precision: str = "auto",
) -> Iterator[Checked]:  # fmt: skip
    """Measure each shape on each path of ``asked``; yields one after the other."""
    device, machine = lane.device, lane.machine
    fingerprint = lane.start()
    compiler = Compiler(device)
    plans: list[tuple[Problem, str, Choice, list[Choice], list[Future[str] | None]]] = []
    ranking: deque[tuple[Problem, str, Future[list[Choice]] | None]] = deque()
    left = ((p, path) for p in problems for path in asked(device, p, precision))
    try:
        while True:
            ranking.extend(
                (p, path, compiler.rank(p) if path == "fp32" else None) for p, path in islice(left, max(0, AHEAD - len(ranking)))
            )
            while ranking and len(plans) < AHEAD:
                problem, path, order = ranking.popleft()
                mine = routed(device, problem, path)
                others = rivals(device, problem, store, machine, path)
                if path == FP32X or (path == "auto" and promising(device, call_of(problem))):  # and the next of the model's order
                    space = CallSpace(device, call_of(problem), precision=FP32X)
                    known = {plain(mine), *others}
                    others += islice((c for c in map(plain, space.ranked()) if c not in known), FP32X_CANDIDATES)
                if order is not None:
                    try:
                        others += [plain(c) for c in order.result()[:CANDIDATES]]
                    except Exception as error:
                        mine = Choice(mine.kernel, mine.tile, mine.options, f"{mine.why} (the model could not be asked: {error})")
                others = [c for c in dict.fromkeys(others) if c != plain(mine)]
                plans.append((problem, path, mine, others, [compiler.ahead(c, fingerprint) for c in (mine, *others)]))
            if not plans:
                return
            problem, path, mine, others, futures = plans.pop(0)
            for future in futures:
                if future is not None:
                    future.exception()  # the worker finds out what is wrong with it
            yield _one(lane, problem, path, mine, others, within, limit, seed)
    finally:
        compiler.close()


def _one(
    lane: Lane, problem: Problem, path: str, mine: Choice, others: Sequence[Choice], within: float, limit: float, seed: int
) -> Checked:
    """A shape; what takes the worker down is left out, and the others are measured all the same."""
    choices, lost = [plain(mine), *others], []
    while True:
        trial = Trial(problem, tuple(choices), TURNS, LEAST, decided=within, hopeless=1.2, limit=limit, seed=seed)
        outcome = lane.run(trial)
        if outcome.trouble:
            return Checked(problem, path, mine, mine.why, trouble=outcome.trouble)
        culprit = next((i for i, s in enumerate(outcome.sampled) if i and s.status in ("crashed", "timeout")), None)
        if culprit is None:
            break
        lost.append((choices.pop(culprit), outcome.sampled[culprit]))
    sampled = (*zip(choices, outcome.sampled, strict=True), *lost)
    own = outcome.sampled[0]
    if own.status != "right" or not own.seconds:
        reason = f"the routed choice is {own.status or 'not measured'}: {own.message}"
        return Checked(problem, path, mine, mine.why, broken=own.status == "wrong", trouble=reason, sampled=sampled)
    ratios = {c: r for c, s in sampled[1:] if s.status == "right" and (r := _ratio(own, s)) is not None}
    again: tuple[tuple[Choice, Sampled], ...] = ()
    if ahead := [c for c, r in ratios.items() if r.value > within]:
        # where the host is disturbed now and then, some look so that are not: a second look must say it, too
        both = (plain(mine), *ahead)
        second = lane.run(Trial(problem, both, TURNS, LEAST, decided=within, hopeless=1.2, limit=limit, seed=seed)).sampled
        if len(second) == len(both) and all(s.status == "right" and s.seconds for s in second):
            again = tuple(zip(both, second, strict=True))
            found = {c: r for c, s in again[1:] if (r := _ratio(second[0], s)) is not None}
            ratios |= {c: min(r, ratios[c], key=lambda one: one.value) for c, r in found.items()}
    best, ratio = max(ratios.items(), key=lambda one: one[1].value, default=(mine, Interval(1, 1, 1)))
    if ratio.value <= 1:
        best, ratio = mine, Interval(1, 1, 1)
    return Checked(problem, path, mine, mine.why, best, ratio, ratio.value > within, "", sampled, again)


def _ratio(own: Sampled, other: Sampled) -> Interval | None:
    mine, theirs = pairs(own, other)
    if mine:
        return paired_ratio(mine, theirs)
    return None if math.inf in (own.median, other.median) else Interval(*(own.median / other.median,) * 3)
