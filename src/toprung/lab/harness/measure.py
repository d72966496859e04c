"""Samples of a bound competitor, and the measurement that they make.

A sample is a loop of calls between two device time stamps, long enough for the clock's resolution and the launch overhead not to
matter. ``compare`` has competitors take turns, sample by sample.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toprung.lab.competitor import BoundCompetitor
from toprung.oracle.check import Verdict
from toprung.oracle.precision import precision
from toprung.oracle.problem import Problem

SAMPLE_SECONDS = 0.02
SAMPLES = 5
LONGEST_LOOP = 1000


@dataclass(frozen=True)
class SamplingPlan:
    """Way in which samples are taken.

    Attributes
    ----------
    sample_seconds : how long a sample lasts
    longest_loop : most calls in one
    settle_seconds : seconds that the same competitor runs before each sample, at least one call, so that the clock, which follows
        the power of what runs, and the temperature settle; 0 for none
    held : whether the queue is held until calls are in it, so that the host's time is apart
    """

    sample_seconds: float = SAMPLE_SECONDS
    longest_loop: int = LONGEST_LOOP
    settle_seconds: float = 0.0
    held: bool = False


BURST = SamplingPlan()
HELD = SamplingPlan(held=True)
SUSTAINED = SamplingPlan(sample_seconds=1.0, longest_loop=200_000, settle_seconds=2.0)


@dataclass(frozen=True)
class Measurement:
    """One competitor on one problem.

    Attributes
    ----------
    competitor : who it was (ladder, rung, tile, options; or a peer's name and promise), as JSON
    seconds : a call's time, one for each sample
    helper_seconds : the part of it that lay out operands, one for each sample
    calls : calls a sample
    clocks_mhz : the device's clock while each sample ran (in older records of ladders: before and after), where it can
        be read
    mode : ``warm`` (the same operands again and again), ``cold`` (none of them in a cache), ``sustained`` (after seconds of load)
        or ``held`` (warm, and the queue held until the calls are in it)
    joules : energy of a call, one for each sample, where it was measured
    each_seconds : a call's time by marks around each, one for each sample, where that was asked for; ``seconds`` is by marks
        around the loop
    host_seconds : what the host took to put a call into the queue, one for each sample of ``held``
    settle_seconds : seconds that the competitor ran before each sample; 0 in records from before there was such a run
    """

    competitor: Mapping[str, Any]
    problem: Mapping[str, Any]
    flops: int
    min_bytes: int
    verdict: Mapping[str, Any]
    seconds: tuple[float, ...]
    helper_seconds: tuple[float, ...]
    calls: int
    clocks_mhz: tuple[float | None, ...] = ()
    mode: str = "warm"
    joules: tuple[float, ...] = ()
    each_seconds: tuple[float, ...] = ()
    host_seconds: tuple[float, ...] = ()
    settle_seconds: float = 0.0

    @property
    def clock(self) -> float | None:
        """Median of the clocks that were read."""
        return statistics.median(read) if (read := [c for c in self.clocks_mhz if c]) else None

    @property
    def energy(self) -> float | None:
        """Median joules of a call."""
        return statistics.median(self.joules) if self.joules else None

    def share_of_peak(self, gflops_per_mhz: float | None) -> float | None:
        """Share of the device's fp32 peak at the clock that was read; None where either is unknown."""
        return self.gflops / (gflops_per_mhz * self.clock) if gflops_per_mhz and self.clock else None

    @property
    def each(self) -> float | None:
        """Median seconds a call by marks around each."""
        return statistics.median(self.each_seconds) if self.each_seconds else None

    @property
    def host(self) -> float | None:
        """The least that the host took to put a call into the queue, in seconds; None where it is not known."""
        return min((s for s in self.host_seconds if s), default=None)

    @property
    def median(self) -> float:
        """Median seconds a call; NaN without samples."""
        return statistics.median(self.seconds) if self.seconds else math.nan

    @property
    def best(self) -> float:
        """Fewest seconds a call."""
        return min(self.seconds, default=math.nan)

    @property
    def helpers(self) -> float:
        """Share of a call that lays out operands, from the medians."""
        return statistics.median(self.helper_seconds) / self.median if self.helper_seconds and self.median else 0.0

    @property
    def gflops(self) -> float:
        """GFLOP/s at the median."""
        return self.flops / self.median / 1e9 if self.median else math.nan

    @property
    def gbytes_per_s(self) -> float:
        """GB/s at the median, of the bytes that must be moved at least."""
        return self.min_bytes / self.median / 1e9 if self.median else math.nan

    @property
    def alone(self) -> float:
        """The speed of what is left of a call without its helpers, in the unit of ``figure``."""
        return self.figure / (1 - self.helpers) if self.helpers < 1 else math.nan

    @property
    def narrow(self) -> bool:
        """True if operands are rounded to fewer bits than fp32 has: what makes them so is then no part of a comparison."""
        return not precision(self.competitor.get("precision", "fp32")).accurate

    @property
    def units(self) -> bool:
        """True if it computes otherwise than in fp32: then the fp32 peak is not its limit."""
        return str(self.competitor.get("precision", "fp32")) != "fp32"

    def baseline(self, others: Iterable[Measurement]) -> Measurement | None:
        """The vendor it is held against: of those at rung 0 the one with operands as wide, else the first."""
        vendors = [o for o in others if o.competitor["number"] == 0]
        return next((o for o in vendors if o.narrow == self.narrow), vendors[0] if vendors else None)

    def share_of(self, vendor: Measurement) -> float:
        """Its speed over a vendor's; without helpers where a narrow vendor is given its operands ready."""
        return (self.alone if self.narrow and vendor.narrow else self.figure) / vendor.figure

    @property
    def measured_in(self) -> str:
        """Unit of its speed: ``GFLOP/s`` or ``GB/s``."""
        return str(self.problem.get("measured_in", "GFLOP/s"))

    @property
    def figure(self) -> float:
        """The speed in that unit."""
        return self.gbytes_per_s if self.measured_in == "GB/s" else self.gflops

    def describe(self) -> dict[str, Any]:
        """As JSON, derived figures included for whoever reads the file without us."""
        speeds = {"gflops": self.gflops, "gbytes_per_s": self.gbytes_per_s}
        return {**vars(self), "median_seconds": self.median, "best_seconds": self.best, **speeds}

    @staticmethod
    def read(record: Mapping[str, Any]) -> Measurement:
        """The inverse of ``describe``; KeyError or TypeError if the record is damaged."""
        return Measurement(
            record["competitor"], record["problem"], int(record["flops"]), int(record["min_bytes"]), record["verdict"],
            tuple(map(float, record["seconds"])), tuple(map(float, record["helper_seconds"])), int(record["calls"]),
            tuple(record["clocks_mhz"]), record.get("mode", "warm"), tuple(map(float, record.get("joules", ()))),
            tuple(map(float, record.get("each_seconds", ()))), tuple(map(float, record.get("host_seconds", ()))),
            float(record.get("settle_seconds", 0.0)),
        )  # fmt: skip


@dataclass
class Timing:
    """Samples of one competitor as they come in."""

    prepared: BoundCompetitor
    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    helper_seconds: list[float] = field(default_factory=list)
    clocks: list[float | None] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    each_seconds: list[float] = field(default_factory=list)
    plan: SamplingPlan = BURST
    host_seconds: list[float] = field(default_factory=list)
    call_seconds: float = 0.0

    def warm_up(self) -> None:
        """Run once to load code and data, then find how many calls make a sample."""
        first = self.prepared.time(1)
        long = self.plan.sample_seconds
        if first < long:
            first = self.prepared.time(max(1, min(10, int(long / max(first, 1e-9)))))
        self.calls = max(1, min(self.plan.longest_loop, math.ceil(long / max(first, 1e-9))))
        self.call_seconds = first

    @property
    def sample_seconds(self) -> float:
        """About how long a sample and its settling take, by the warm-up; 0 before it."""
        settling = max(self.plan.settle_seconds, self.call_seconds) if self.plan.settle_seconds else 0.0
        return settling + self.calls * self.call_seconds if self.call_seconds else 0.0

    def sample(self, clock: Callable[[], float | None] | None = None, joules: Callable[[], float] | None = None) -> None:
        """Take one more sample.

        ``clock`` is read while it runs; ``joules`` is a counter that is read before and after.
        """
        self._settle()
        before = joules() if joules else 0.0

        def in_flight() -> None:
            if clock:
                self.clocks.append(clock())

        if self.plan.held:
            device, host = self.prepared.time_held(self.calls, in_flight)
            self.seconds.append(device)
            self.host_seconds.append(host)
        else:
            self.seconds.append(self.prepared.time(self.calls, in_flight))
        if joules:
            self.joules.append((joules() - before) / self.calls)
        self.helper_seconds.append(self.prepared.helper_time(self.calls))

    def _settle(self) -> None:
        """Run for the plan's settling time; a clock too coarse to see a burst ends it as well."""
        wanted, settled = self.plan.settle_seconds, 0.0
        while settled < wanted:
            calls = max(1, math.ceil(self.calls * min(1.0, (wanted - settled) / self.plan.sample_seconds)))
            settled += max(self.prepared.time(calls) * calls, wanted / 50)

    def measurement(self, competitor: Mapping[str, Any], problem: Problem, verdict: Verdict, mode: str = "warm") -> Measurement:
        """Return the measurement of what has come in so far."""
        return Measurement(
            competitor, problem.describe(), problem.flops, problem.min_bytes, verdict.describe(), tuple(self.seconds),
            tuple(self.helper_seconds), self.calls, tuple(self.clocks), mode, tuple(self.joules), tuple(self.each_seconds),
            tuple(self.host_seconds), self.plan.settle_seconds,
        )  # fmt: skip
