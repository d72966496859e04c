"""What a measuring worker is asked, and what it answers: frozen, so that it can be sent anywhere."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toprung.blas.choice import Choice
from toprung.blas.problems import call_of, class_of, source_hash
from toprung.problem import Problem
from toprung.store import Entry, Machine
from toprung.tile import Tile


@dataclass(frozen=True)
class Trial:
    """Choices to be verified and then timed in turns on one problem.

    Attributes
    ----------
    choices : the first is what the others are compared to; somebody else's go by the name of a peer
    turns, least : samples of each at most, and before a comparison may be decided
    sample_seconds : how long one lasts
    decided : the ratio first / other that a confidence interval must exclude; ``turns`` ends what it does not
    hopeless : how many times as long as the fastest so far a choice may take before it gets no more samples
    limit : seconds that a run of one choice may take
    most : seconds of timing after which no other turn begins
    cold : samples of each with operands in no cache, at the end
    seed : of the operands
    """

    problem: Problem
    choices: tuple[Choice, ...]
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
    """What became of one choice.

    Attributes
    ----------
    status : as ``toprung.store.Entry`` has it; ``""`` where it was not its turn before something else ended the trial
    seconds : of a call, for each sample: the longer of the two below
    turns : which turn each sample belongs to, so that choices can be compared pair by pair
    device_seconds : what the device took for a call in each sample; where queues cannot be held the host is in it
    host_seconds : the least that the host was seen to take to put such a call into the queue, 0 where that is not known
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
        """Of the unmarked samples, of all where none is; infinite without any."""
        kept = [s for s, m in zip(self.seconds, self.marked, strict=True) if not m] or self.seconds
        return statistics.median(kept) if kept and self.status == "right" else math.inf


@dataclass(frozen=True)
class Outcome:
    """What became of each choice of a trial.

    Attributes
    ----------
    seconds : that the trial took in all
    trouble : why none could be tried (memory, a device that is gone), empty otherwise
    """

    sampled: tuple[Sampled, ...] = ()
    seconds: float = 0.0
    trouble: str = ""


@dataclass
class Samples:
    """The same while it is being taken; ``device`` is what the device took."""

    device: list[float] = field(default_factory=list)
    clocks: list[float | None] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)


DROP = 0.95
"""A sample is marked if the clock was below this share of the trial's median."""


def mark(sampled: Sequence[Sampled]) -> tuple[Sampled, ...]:
    """With the samples marked while which the clock had dropped."""
    clocks = [c for s in sampled for c in s.clocks_mhz if c]
    usual = statistics.median(clocks) if clocks else 0.0
    return tuple(replace(s, marked=tuple(bool(c and c < DROP * usual) for c in s.clocks_mhz)) for s in sampled)


def pairs(first: Sampled, other: Sampled) -> tuple[list[float], list[float]]:
    """Samples of the same turns."""
    mine = dict(zip(first.turns, first.seconds, strict=True))
    theirs = dict(zip(other.turns, other.seconds, strict=True))
    both = [t for t in mine if t in theirs]
    return [mine[t] for t in both], [theirs[t] for t in both]


def describe(choice: Choice) -> dict[str, Any]:
    """A choice as the store and records have it."""
    return {"kernel": choice.kernel, "tile": choice.tile.given() if choice.tile else {}, "options": dict(choice.options)}


def choice_of(candidate: Mapping[str, Any]) -> Choice:
    """The inverse."""
    tile, options = candidate.get("tile") or {}, candidate.get("options") or {}
    return Choice(str(candidate["kernel"]), Tile(**tile) if tile else None, tuple(sorted(options.items())))


def entry_of(machine: Machine, problem: Problem, choice: Choice, sampled: Sampled) -> Entry:
    """What became of a choice, as the store keeps it."""
    return Entry(
        machine=machine, problem_class=class_of(call_of(problem)), shape=problem.describe(), candidate=describe(choice),
        source=source_hash(choice.kernel, machine.backend), seconds=sampled.seconds, cold_seconds=sampled.cold_seconds,
        clocks_mhz=sampled.clocks_mhz, marked=sampled.marked, grade=sampled.grade, status=sampled.status, message=sampled.message,
    )  # fmt: skip


def plain(choice: Choice) -> Choice:
    """Without reasons: what makes two choices the same."""
    return Choice(choice.kernel, choice.tile, tuple(sorted(choice.options)))
