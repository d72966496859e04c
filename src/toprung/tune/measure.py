"""Trials on an opened device: the candidates of a trial are compared in turns, on operands that are placed once per problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from toprung.backends.base import Session
from toprung.device import Device
from toprung.dispatch.selection import Candidate
from toprung.errors import BuildError, IllegalTile, OutOfDeviceMemory, SwitchRefused, UnknownName, Unsupported
from toprung.lab import baselines
from toprung.lab.competitor import BoundCompetitor, Promise
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.library import BoundProduct, Toprung
from toprung.lab.harness.measure import SamplingPlan
from toprung.lab.harness.stats import paired_ratio
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem
from toprung.tune.trial import Outcome, Sampled, Samples, Trial, mark, pairs

WHOLE = 1024
"""Most rows or columns of an output that is checked whole; a larger one by sampled rows and columns and Freivalds' test."""

TIE = 1e-3
"""Share of the device's seconds that breaks ties in ``lasting``: less than two measurements of one candidate differ by."""

KEPT = 8
"""Number of prepared candidates that are kept from one trial to the next; the incumbent is among them."""

REFUSALS = (BuildError, IllegalTile, SwitchRefused, UnknownName, Unsupported)
"""Exceptions that say a candidate cannot be built here; any other exception leaves the device in doubt."""

Says = Callable[[str, int], None]
"""Callback that gets a phase (``place``, ``build``, ``run``, ``check``, ``time``) and the candidate's number before each begins."""


PHASES: Mapping[str, str] = {"building": "build", "running": "run", "checking": "check", "warming": "time", "sampling": "time"}
"""Phase that begins where ``compare`` yields a row in a state."""


class Trialled:
    """A candidate as a competitor; on further operands toprung's own reuse the launches of the first."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.name, self.title = candidate, str(candidate), str(candidate)
        self.promise = Promise(candidate.family.precision)
        self.first: BoundCompetitor | None = None

    def absent(self, device: Device) -> str:
        # no reason: candidates are of this device
        return ""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        if isinstance(self.first, BoundProduct):
            return self.first.elsewhere(placed)
        family, routine = self.candidate.family, placed.operands.problem.routine
        if family.memory == "device":
            bound = Toprung(candidate=self.candidate).prepare(placed)
        else:
            name = self.candidate.kernel if routine == "gemm" else f"{self.candidate.kernel}_{routine}"
            bound = baselines.peer(name).prepare(placed)
        self.first = self.first or bound
        return bound

    def describe(self, device: Device) -> dict[str, Any]:
        return {"kind": "candidate", "name": self.name, "number": 0, "precision": self.promise.precision, **self.candidate.encode()}


class Measurer:
    """Measurements on one device, with the operands and prepared candidates of the current problem."""

    def __init__(self, session: Session, alone: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.session, self._alone = session, alone
        self.placed: PlacedProblem | None = None
        self._at: tuple[Problem, int] | None = None
        self._ready: dict[Candidate, Row] = {}
        self._host: dict[tuple[str, Any], float] = {}

    def run(self, trial: Trial, says: Says = lambda phase, which: None) -> Outcome:
        """Verify and time a trial's candidates.

        Raises
        ------
        Exception
            any exception of a candidate that leaves the device in doubt; the last call of ``says`` named the candidate
        """
        start = time.monotonic()
        says("place", 0)
        try:
            if self._at != (trial.problem, trial.seed):
                self.placed, self._at, self._ready = None, None, {}  # before the next are made: both may not fit
                self.placed = PlacedProblem(trial.problem, self.session, seed=trial.seed, whole=WHOLE, alone=self._alone)
                self._at = trial.problem, trial.seed
        except (OutOfDeviceMemory, MemoryError) as error:
            return Outcome((), time.monotonic() - start, str(error) or "there is not enough memory for the operands")
        sampled = self._time(trial, says)
        while len(self._ready) > max(KEPT, len(trial.candidates)):
            del self._ready[next(iter(self._ready))]
        return Outcome(mark(sampled), time.monotonic() - start)

    def _row(self, candidate: Candidate, mode: str) -> Row:
        """Return a row for a candidate: with what was prepared and verified before, if that is kept."""
        if (kept := self._ready.get(candidate)) is not None:
            return Row(kept.who, mode, verdict=kept.verdict, bound=kept.bound)
        return Row(Trialled(candidate), mode)

    def _time(self, trial: Trial, says: Says) -> list[Sampled]:
        """Verify, then time in turns until every comparison is decided, or the turns or the time are over."""
        assert self.placed is not None
        sampling = SamplingPlan(sample_seconds=trial.sample_seconds, held=True)
        plan = ComparisonPlan(("held",), {"held": trial.turns}, {"held": sampling}, tolerates=REFUSALS)
        sampled = [Sampled()] * len(trial.candidates)
        rows = [self._row(candidate, "held") for candidate in trial.candidates]
        number = {id(row): i for i, row in enumerate(rows)}
        taken: dict[int, Samples] = {}
        alike: dict[int, tuple[str, Any]] = {}
        fastest, end = float("inf"), math.inf
        for row in compare(self.placed, rows, plan):
            i, candidate = number[id(row)], trial.candidates[number[id(row)]]
            if row.state in PHASES:
                says(PHASES[row.state], i)
            if row.state in ("failed", "unsupported"):
                sampled[i] = Sampled("build", row.note)
            elif row.state == "wrong" and row.verdict:
                sampled[i] = Sampled("wrong", "; ".join(row.verdict.problems), grade=row.verdict.grade)
            elif row.state == "warming" and row.verdict and row.bound:
                sampled[i], taken[i] = Sampled("right", grade=row.verdict.grade), Samples()
                # for kernels of our own, calls with the same kernel and number of launches are alike, whatever the problem
                ours = row.bound if candidate.family.own and isinstance(row.bound, BoundProduct) else None
                alike[i] = candidate.kernel, ours.executable.launches if ours else trial.problem
                self._ready.pop(candidate, None)
                self._ready[candidate] = row  # to the end: the least recently used is dropped first
                first = min(row.bound.time(1), row.bound.time(1))  # the very first call wakes threads and fills caches
                fastest, end = min(fastest, first), time.monotonic() + trial.most
                if first > 3 * trial.hopeless * fastest:  # one call is a poor sample: it rules out only what is far slower
                    taken[i].add(first, None, -1)
                    row.state = "dropped"
            elif row.state in ("timing", "done") and row.timing and len(row.timing.seconds) > len(taken[i].device):
                timing, turn = row.timing, len(taken[i].device)
                taken[i].add(timing.seconds[-1], timing.clocks[-1] if timing.clocks else None, turn)
                self._quiet(alike[i], timing.host_seconds[-1])
                running = {n: r for n, r in enumerate(rows) if r.state in ("timing", "done")}
                if any(len(taken[n].device) <= turn for n in running):
                    continue
                # the turn is over
                for n, samples in taken.items():
                    host = self._quiet(alike[n])
                    sampled[n] = replace(
                        sampled[n], seconds=lasting(samples.device, host), clocks_mhz=tuple(samples.clocks),
                        turns=tuple(samples.turns), device_seconds=tuple(samples.device), host_seconds=host,
                    )  # fmt: skip
                fastest = min([fastest, *(min(sampled[n].seconds) for n in running)])
                over = time.monotonic() > end
                if turn + 1 >= trial.least:
                    over |= all(_decided(sampled[0], sampled[n], trial.decided) for n in running if n)
                for n, one in running.items():
                    if over or (n and min(sampled[n].seconds) > trial.hopeless * fastest):
                        one.state = "dropped"
        if trial.cold:
            self._time_cold(trial, sampled, says)
        return sampled

    def _quiet(self, alike: tuple[str, Any], seconds: float = math.inf) -> float:
        """Return the least seconds that the host has taken so far to enqueue such a call: disturbances only make it longer."""
        self._host[alike] = least = min(self._host.get(alike, math.inf), seconds)
        return least if least < math.inf else 0.0

    def _time_cold(self, trial: Trial, sampled: list[Sampled], says: Says) -> None:
        """Time candidates with operands that are in no cache; a problem larger than every cache is cold without copies."""
        assert self.placed is not None
        timed = [i for i, one in enumerate(sampled) if one.status == "right" and one.turns != (-1,)]
        shared = self.session.device.kind != "cpu"
        says("place", 0)
        self.placed.copies(shared)
        sampling = SamplingPlan(sample_seconds=trial.sample_seconds, held=True)
        plan = ComparisonPlan(("cold",), {"cold": trial.cold}, {"cold": sampling}, tolerates=REFUSALS, shared=shared)
        rows = {i: self._row(trial.candidates[i], "cold") for i in timed}
        number = {id(row): i for i, row in rows.items()}
        for row in compare(self.placed, list(rows.values()), plan):
            says("time", number[id(row)])
        for i, row in rows.items():
            if row.measurement:
                sampled[i] = replace(sampled[i], cold_seconds=lasting(row.measurement.seconds, sampled[i].host_seconds))


def lasting(device: Sequence[float], host: float) -> tuple[float, ...]:
    """Return seconds per call in a loop on an undisturbed host, from each sample's device seconds and the host's least seconds.

    Of two candidates that the host limits alike, the one with less device time counts as faster, by ``TIE`` times that time: in a
    CUDA graph the host's time drops out.
    """
    return tuple(max(d, host + TIE * d) for d in device)


def _decided(first: Sampled, other: Sampled, ratio: float) -> bool:
    """Return True if the confidence interval of first / other excludes ``ratio``."""
    mine, theirs = pairs(first, other)
    if not mine:
        return False
    found = paired_ratio(mine, theirs)
    return not found.low <= ratio <= found.high
