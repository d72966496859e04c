"""Trials on an opened device: operands once for each problem, every choice verified before it is timed, all in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toprung import peers
from toprung.backends.base import Session
from toprung.bench import copies
from toprung.blas import launches
from toprung.blas.choice import Choice
from toprung.blas.competitor import Bound, Toprung
from toprung.blas.fp32x import path_of
from toprung.blas.problems import call_of
from toprung.check import Oracle, hostile
from toprung.competitor import OnDevice, Prepared, Rotating, refuse_what_cannot_fit
from toprung.errors import BuildError, IllegalTile, OutOfDeviceMemory, SwitchRefused, UnknownName, Unsupported
from toprung.measure import Plan, Timing
from toprung.power import clock_reader
from toprung.problem import Problem
from toprung.stats import paired_ratio
from toprung.tune.trial import Outcome, Sampled, Samples, Trial, mark, pairs, plain

WHOLE = 1024
"""Outputs with more rows or columns are checked on sampled rows and columns and by Freivalds' test."""

TIE = 1e-3
"""See ``lasting``: less than two looks at the same differ by."""

KEPT = 8
"""Prepared choices that are kept from one trial to the next: the incumbent is among them."""

REFUSALS = (BuildError, IllegalTile, SwitchRefused, UnknownName, Unsupported)
"""What says that a choice cannot be built here; anything else that is raised leaves the device in doubt."""

Says = Callable[[str, int], None]
"""Called with a phase (``place``, ``build``, ``run``, ``check``, ``time``) and the choice's number before each begins."""


@dataclass
class Ready:
    """A choice that was found right."""

    prepared: Prepared
    grade: float


class Measurer:
    """One device and the problem it is at."""

    def __init__(self, session: Session) -> None:
        self.session, self._clock = session, clock_reader(session)
        self._problem: Problem | None = None
        self._seed = 0
        self._ready: dict[Choice, Ready] = {}
        self._host: dict[tuple[str, Any], float] = {}

    def run(self, trial: Trial, says: Says = lambda phase, which: None) -> Outcome:
        """Verify and time a trial's choices.

        Raises
        ------
        Exception
            whatever a choice raised that leaves the device in doubt; ``says`` has told which
        """
        start = time.monotonic()
        says("place", 0)
        try:
            self._place(trial.problem, trial.seed)
        except (OutOfDeviceMemory, MemoryError) as error:
            self._problem = None
            return Outcome((), time.monotonic() - start, str(error) or "there is not enough memory for the operands")
        sampled = [Sampled()] * len(trial.choices)
        ready: dict[int, Ready] = {}
        for i, choice in enumerate(trial.choices):
            sampled[i] = self._prepare(i, choice, says, ready)
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

    def _prepare(self, i: int, choice: Choice, says: Says, ready: dict[int, Ready]) -> Sampled:
        """Build, run once, verify; or take what was made for an earlier trial."""
        choice = plain(choice)
        if (found := self._ready.pop(choice, None)) is None:
            says("build", i)
            try:
                prepared = self._bound(choice, self._placed)
            except REFUSALS as error:
                return Sampled("build", str(error))
            prepared.reset()
            says("run", i)
            prepared.time(1)
            says("check", i)
            verdict = self._oracle.verify(prepared.fetch(), path_of(choice.kernel))
            if not verdict.right:
                return Sampled("wrong", "; ".join(verdict.problems), grade=verdict.grade)
            found = Ready(prepared, verdict.grade)
        self._ready[choice] = ready[i] = found  # at the end: the least recently used goes first
        return Sampled("right", grade=found.grade)

    def _bound(self, choice: Choice, placed: OnDevice) -> Prepared:
        if choice.kernel in launches.PRODUCTS:
            return Toprung(choice=choice).prepare(placed)
        routine = placed.operands.problem.routine
        name = choice.kernel if routine == "gemm" else f"{choice.kernel}_{routine}"
        return peers.peer(name).prepare(placed)

    def _rebound(self, prepared: Prepared, choice: Choice, placed: OnDevice) -> Prepared:
        """The same on other operands; ours are not laid out anew for each."""
        return prepared.elsewhere(placed) if isinstance(prepared, Bound) else self._bound(choice, placed)

    def _time(self, trial: Trial, ready: dict[int, Ready], sampled: list[Sampled], says: Says) -> None:
        plan = Plan(sample_seconds=trial.sample_seconds, held=True)
        taken = {i: Samples() for i in ready}
        timings: dict[int, Timing] = {}
        fastest = float("inf")
        for i, one in ready.items():
            says("time", i)
            first = min(one.prepared.time(1), one.prepared.time(1))  # the first of all wakes threads and caches
            fastest = min(fastest, first)
            if first > 3 * trial.hopeless * fastest:  # one call is a poor sample: it condemns only what is far off
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
                self._quiet(trial.problem, trial.choices[i], timing.host_seconds[-1])
            for i, samples in taken.items():
                host = self._quiet(trial.problem, trial.choices[i])
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

    def _quiet(self, problem: Problem, choice: Choice, seconds: float = math.inf) -> float:
        """The least that the host has taken so far to put such a call into the queue: what disturbs it only makes that longer.

        Of ours the kernel and the number of launches count, whatever the problem.
        """
        ours = choice.tile is not None
        work = launches.count(call_of(problem), choice, self.session.device.compute_units) if ours else problem
        self._host[choice.kernel, work] = least = min(self._host.get((choice.kernel, work), math.inf), seconds)
        return least if least < math.inf else 0.0

    def _time_cold(self, trial: Trial, ready: dict[int, Ready], sampled: list[Sampled], says: Says) -> None:
        """With operands that are in no cache; a problem that is larger than any cache by itself is cold already."""
        if self._copies is None:
            says("place", 0)
            self._copies = copies(self._operands, self.session, shared=self.session.device.kind != "cpu")
        for i in ready:
            if sampled[i].turns == (-1,):
                continue
            says("run", i)
            prepared = ready[i].prepared
            if self._copies:
                prepared = Rotating([self._rebound(prepared, plain(trial.choices[i]), one) for one in self._copies])
            timing = Timing(prepared, plan=Plan(sample_seconds=trial.sample_seconds, held=True))
            timing.warm_up()
            for _ in range(trial.cold):
                timing.sample()
            sampled[i] = replace(sampled[i], cold_seconds=lasting(timing.seconds, sampled[i].host_seconds))


def lasting(device: Sequence[float], host: float) -> tuple[float, ...]:
    """Seconds of calls in a loop on a host that nothing disturbs, from the device's of each sample and the host's least.

    Of two that the host limits alike, the one that the device is sooner done with counts as the faster, by ``TIE`` of that: a graph
    has no host.
    """
    return tuple(max(d, host + TIE * d) for d in device)


def _decided(first: Sampled, other: Sampled, ratio: float) -> bool:
    """Whether the interval of the ratio of two excludes the one in question."""
    mine, theirs = pairs(first, other)
    if not mine:
        return False
    found = paired_ratio(mine, theirs)
    return not found.low <= ratio <= found.high
