"""Requests to a measuring worker and its answers: frozen, so that they can be sent anywhere."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from toprung.dispatch.selection import Candidate
from toprung.dispatch.tuned import version
from toprung.gemm.classes import class_of
from toprung.kernels import build
from toprung.oracle.problem import Problem
from toprung.store import Entry, Machine


@dataclass(frozen=True)
class Trial:
    """Candidates to be verified and then timed in turns on one problem.

    Attributes
    ----------
    candidates : the first is compared with each of the others; an installed library's is run as the peer of its name
    turns, least : most samples of each candidate, and least before a comparison may be decided
    sample_seconds : seconds that one sample lasts
    decided : timing ends early once every confidence interval of first / other excludes this ratio
    hopeless : multiple of the fastest time so far above which a candidate gets no more samples
    limit : seconds that a run of one candidate may take
    most : seconds of timing after which no other turn begins
    cold : number of samples of each candidate with operands in no cache, taken at the end
    seed : seed of the random operands
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    turns: int = 15
    least: int = 5
    sample_seconds: float = 0.003
    decided: float = 1.0
    hopeless: float = 1.3
    limit: float = 20.0
    most: float = math.inf
    cold: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Sampled:
    """Result of one candidate in a trial.

    Attributes
    ----------
    status : as in ``toprung.store.Entry``; ``""`` if the trial ended before the candidate's turn
    seconds : seconds per call in each sample: the longer of device and host, see ``toprung.tune.measure.lasting``
    turns : number of the turn that each sample belongs to, so that candidates can be compared pair by pair
    device_seconds : device seconds per call in each sample; where queues cannot be held, the host's time is included
    host_seconds : least seconds that the host took to enqueue such a call, 0 where that is not known
    """

    status: str = ""
    message: str = ""
    seconds: tuple[float, ...] = ()
    cold_seconds: tuple[float, ...] = ()
    clocks_mhz: tuple[float | None, ...] = ()
    marked: tuple[bool, ...] = ()
    turns: tuple[int, ...] = ()
    grade: float = 0.0
    device_seconds: tuple[float, ...] = ()
    host_seconds: float = 0.0

    @property
    def median(self) -> float:
        """Median seconds of the unmarked samples, or of all if every one is marked; infinite without samples or if not right."""
        kept = [s for s, m in zip(self.seconds, self.marked, strict=True) if not m] or self.seconds
        return statistics.median(kept) if kept and self.status == "right" else math.inf


@dataclass(frozen=True)
class Outcome:
    """Results of a trial, one for each candidate.

    Attributes
    ----------
    seconds : seconds that the trial took in all
    trouble : reason why no candidate could be tried (memory, a device that is gone), empty otherwise
    """

    sampled: tuple[Sampled, ...] = ()
    seconds: float = 0.0
    trouble: str = ""


@dataclass
class Samples:
    """Samples of one candidate while they are taken: device seconds per call, clocks in MHz, numbers of the turns."""

    device: list[float] = field(default_factory=list)
    clocks: list[float | None] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def add(self, seconds: float, clock: float | None, turn: int) -> None:
        """Add a sample."""
        self.device.append(seconds)
        self.clocks.append(clock)
        self.turns.append(turn)


DROP = 0.95
"""Share of the trial's median clock below which a sample is marked."""


def mark(sampled: Sequence[Sampled]) -> tuple[Sampled, ...]:
    """Return the results with those samples marked that were taken while the clock had dropped."""
    clocks = [c for s in sampled for c in s.clocks_mhz if c]
    usual = statistics.median(clocks) if clocks else 0.0
    return tuple(replace(s, marked=tuple(bool(c and c < DROP * usual) for c in s.clocks_mhz)) for s in sampled)


def pairs(first: Sampled, other: Sampled) -> tuple[list[float], list[float]]:
    """Return the seconds of two candidates in the turns that both have a sample of."""
    mine = dict(zip(first.turns, first.seconds, strict=True))
    theirs = dict(zip(other.turns, other.seconds, strict=True))
    both = [t for t in mine if t in theirs]
    return [mine[t] for t in both], [theirs[t] for t in both]


def entry_of(machine: Machine, problem: Problem, candidate: Candidate, sampled: Sampled) -> Entry:
    """Return a candidate's result as an entry of the store."""
    # a worker loaded the kernel: the record of the run, which this process writes, would not name it
    build.LOADED.update(dict.fromkeys(candidate.family.texts(machine.backend), candidate.kernel))
    return Entry(
        machine=machine, problem_class=class_of(problem.desc), shape=problem.describe(), candidate=candidate.encode(),
        source=version(candidate.kernel, machine.backend), seconds=sampled.seconds, cold_seconds=sampled.cold_seconds,
        clocks_mhz=sampled.clocks_mhz, marked=sampled.marked, grade=sampled.grade, status=sampled.status, message=sampled.message,
    )  # fmt: skip
