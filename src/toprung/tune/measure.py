"""Trials on an opened device: operands are placed once per problem, each candidate is verified, then all are timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toprung.backends.base import Session
from toprung.dispatch.selection import Candidate
from toprung.errors import BuildError, IllegalTile, OutOfDeviceMemory, SwitchRefused, UnknownName, Unsupported
from toprung.lab import baselines
from toprung.lab.competitor import BoundCompetitor, Rotating, refuse_what_cannot_fit
from toprung.lab.harness.bench import copies
from toprung.lab.harness.library import BoundProduct, Toprung
from toprung.lab.harness.measure import SamplingPlan, Timing
from toprung.lab.harness.power import clock_reader
from toprung.lab.harness.stats import paired_ratio
from toprung.oracle.check import Oracle, hostile
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


@dataclass
class Verified:
    """A prepared candidate that passed verification, with its error grade."""

    prepared: BoundCompetitor
    grade: float


class Measurer:
    """Measurements on one device, with the operands and prepared candidates of the current problem."""

    def __init__(self, session: Session) -> None:
        self.session, self._clock = session, clock_reader(session)
        self._problem: Problem | None = None
        self._seed = 0
        self._ready: dict[Candidate, Verified] = {}
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
            self._place(trial.problem, trial.seed)
        except (OutOfDeviceMemory, MemoryError) as error:
            self._problem = None
            return Outcome((), time.monotonic() - start, str(error) or "there is not enough memory for the operands")
        sampled = [Sampled()] * len(trial.candidates)
        ready: dict[int, Verified] = {}
        for i, candidate in enumerate(trial.candidates):
            sampled[i] = self._prepare(i, candidate, says, ready)
        while len(self._ready) > max(KEPT, len(ready)):
            del self._ready[next(iter(self._ready))]
        if ready:
            self._time(trial, ready, sampled, says)
        return Outcome(mark(sampled), time.monotonic() - start)

    def _place(self, problem: Problem, seed: int) -> None:
        if self._problem == problem and self._seed == seed:
            return
        self._problem, self._ready = None, {}
        refuse_what_cannot_fit(problem, self.session.device)
        self._operands = hostile(problem, seed=seed)
        self._placed = OnDevice(self._operands, self.session)
        self._oracle = Oracle(self._operands, WHOLE)
        self._copies: list[OnDevice] | None = None
        self._problem, self._seed = problem, seed

    def _prepare(self, i: int, candidate: Candidate, says: Says, ready: dict[int, Verified]) -> Sampled:
        """Build a candidate, run it once and verify it; or reuse what an earlier trial prepared."""
        if (found := self._ready.pop(candidate, None)) is None:
            says("build", i)
            try:
                prepared = self._bound(candidate, self._placed)
            except REFUSALS as error:
                return Sampled("build", str(error))
            prepared.reset()
            says("run", i)
            prepared.time(1)
            says("check", i)
            verdict = self._oracle.verify(prepared.fetch(), candidate.family.precision)
            if not verdict.right:
                return Sampled("wrong", "; ".join(verdict.problems), grade=verdict.grade)
            found = Verified(prepared, verdict.grade)
        self._ready[candidate] = ready[i] = found  # to the end: the least recently used is dropped first
        return Sampled("right", grade=found.grade)

    def _bound(self, candidate: Candidate, placed: OnDevice) -> BoundCompetitor:
        if candidate.family.memory == "device":
            return Toprung(candidate=candidate).prepare(placed)
        routine = placed.operands.problem.routine
        name = candidate.kernel if routine == "gemm" else f"{candidate.kernel}_{routine}"
        return baselines.peer(name).prepare(placed)

    def _rebound(self, prepared: BoundCompetitor, candidate: Candidate, placed: OnDevice) -> BoundCompetitor:
        """Return a prepared candidate bound to other operands; toprung's own reuse their launches."""
        return prepared.elsewhere(placed) if isinstance(prepared, BoundProduct) else self._bound(candidate, placed)

    def _time(self, trial: Trial, ready: dict[int, Verified], sampled: list[Sampled], says: Says) -> None:
        plan = SamplingPlan(sample_seconds=trial.sample_seconds, held=True)
        taken = {i: Samples() for i in ready}
        timings: dict[int, Timing] = {}
        fastest = float("inf")
        for i, one in ready.items():
            says("time", i)
            first = min(one.prepared.time(1), one.prepared.time(1))  # the very first call wakes threads and fills caches
            fastest = min(fastest, first)
            if first > 3 * trial.hopeless * fastest:  # one call is a poor sample: it rules out only what is far slower
                taken[i].device.append(first)
                taken[i].clocks.append(None)
                taken[i].turns.append(-1)
                continue
            timings[i] = Timing(one.prepared, plan=plan)
            timings[i].warm_up()
        end = time.monotonic() + trial.most
        for turn in range(trial.turns):
            for i, timing in timings.items():
                says("time", i)
                timing.sample(self._clock)
                taken[i].device.append(timing.seconds[-1])
                taken[i].clocks.append(timing.clocks[-1] if timing.clocks else None)
                taken[i].turns.append(turn)
                self._quiet(trial.problem, trial.candidates[i], timing.host_seconds[-1])
            for i, samples in taken.items():
                host = self._quiet(trial.problem, trial.candidates[i])
                sampled[i] = replace(
                    sampled[i], seconds=lasting(samples.device, host), clocks_mhz=tuple(samples.clocks), turns=tuple(samples.turns),
                    device_seconds=tuple(samples.device), host_seconds=host,
                )  # fmt: skip
            fastest = min([fastest, *(min(sampled[i].seconds) for i in timings)])
            for i in [i for i in timings if i and min(sampled[i].seconds) > trial.hopeless * fastest]:
                del timings[i]
            if time.monotonic() > end:
                break
            if turn + 1 >= trial.least and all(_decided(sampled[0], sampled[i], trial.decided) for i in timings if i):
                break
        if trial.cold:
            self._time_cold(trial, ready, sampled, says)

    def _quiet(self, problem: Problem, candidate: Candidate, seconds: float = math.inf) -> float:
        """Return the least seconds that the host has taken so far to enqueue such a call: disturbances only make it longer.

        For kernels of our own, calls with the same kernel and number of launches are alike, whatever the problem.
        """
        ours, device = candidate.family.own, self.session.device
        work = candidate.family.launch_count(device, problem.desc, candidate.config) if ours else problem
        self._host[candidate.kernel, work] = least = min(self._host.get((candidate.kernel, work), math.inf), seconds)
        return least if least < math.inf else 0.0

    def _time_cold(self, trial: Trial, ready: dict[int, Verified], sampled: list[Sampled], says: Says) -> None:
        """Time candidates with operands that are in no cache; a problem larger than every cache is cold without copies."""
        if self._copies is None:
            says("place", 0)
            self._copies = copies(self._operands, self.session, shared=self.session.device.kind != "cpu")
        for i in ready:
            if sampled[i].turns == (-1,):
                continue
            says("run", i)
            prepared = ready[i].prepared
            if self._copies:
                prepared = Rotating([self._rebound(prepared, trial.candidates[i], one) for one in self._copies])
            timing = Timing(prepared, plan=SamplingPlan(sample_seconds=trial.sample_seconds, held=True))
            timing.warm_up()
            for _ in range(trial.cold):
                timing.sample()
            sampled[i] = replace(sampled[i], cold_seconds=lasting(timing.seconds, sampled[i].host_seconds))


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
