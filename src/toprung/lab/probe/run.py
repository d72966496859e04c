"""(Benchmarks, session) → Findings: every case verified, warmed up, then timed in turns with the others of its benchmark."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from toprung.backends.base import Launch, Resources, Session
from toprung.errors import MissingExtra, ToprungError
from toprung.kernels.build import source_kernel
from toprung.lab.bounds.registers import Reads
from toprung.lab.competitor import BoundCompetitor, HostClock
from toprung.lab.harness.measure import SAMPLES, SamplingPlan, Timing
from toprung.lab.harness.power import Meter
from toprung.lab.probe.base import Benchmark, Case, Placed
from toprung.lab.sass.machine_code import inspect_source
from toprung.oracle.problem import F32

PLAN = SamplingPlan(sample_seconds=0.01, longest_loop=2000)
POWER_SECONDS = 0.5


@dataclass
class Finding:
    """One case as its samples come in.

    Attributes
    ----------
    values : the figure of each sample, in the benchmark's unit; empty where it takes a clock that nobody can read
    seconds : device seconds of a launch, a sample each
    clocks_mhz : the clock while each sample ran
    watts : power while it ran, where it was measured
    problem : what was wrong, as a sentence: such a case is not timed
    reads : what its loop asks of the register file, where the machine code can be read and power is of interest
    """

    benchmark: Benchmark
    case: Case
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    clocks_mhz: list[float | None] = field(default_factory=list)
    calls: int = 0
    watts: float | None = None
    problem: str = ""
    resources: Resources = field(default_factory=Resources)
    reads: Reads | None = None

    @property
    def value(self) -> float:
        """Median; NaN where there is none."""
        return statistics.median(self.values) if self.values else math.nan

    @property
    def clock(self) -> float | None:
        """Median of the clocks that were read."""
        return statistics.median(read) if (read := [c for c in self.clocks_mhz if c]) else None

    def describe(self) -> dict[str, Any]:
        """Return it as JSON."""
        c, unit = self.case, self.benchmark.unit
        return {
            "benchmark": self.benchmark.name, "title": self.benchmark.title, "label": c.label, "params": dict(c.params),
            "unit": unit.name, "value": None if math.isnan(self.value) else self.value, "values": self.values,
            "vendor": c.vendor, "work": c.work, "groups": c.groups, "local": c.local, "seconds": self.seconds,
            "clocks_mhz": self.clocks_mhz, "calls": self.calls, "watts": self.watts, "registers": self.resources.registers,
            "problem": self.problem, "reads": asdict(self.reads) if self.reads else None,
        }  # fmt: skip


class Bound(BoundCompetitor):
    """A case bound to its operands."""

    def __init__(self, launch: Launch, session: Session, synchronous: bool) -> None:
        self._launch, self._session, self._synchronous = launch, session, synchronous
        self.clock = HostClock() if synchronous else session

    def reset(self) -> None:
        """Do nothing: a launch writes everything anew."""

    def run(self) -> None:
        self._launch()
        if self._synchronous:
            self._session.synchronize()

    def fetch(self) -> F32:
        # nothing: the case's own check looks at what it wrote
        return np.empty(0, np.float32)


def probe(session: Session, wanted: Sequence[Benchmark], samples: int = SAMPLES, power: bool = True) -> Iterator[Finding]:
    """Run benchmarks; a case is given when its last sample has been taken.

    What does not compile, does not fit or computes something wrong is given with its problem and without a figure.
    """
    meter = Meter(session.device)
    for one in wanted:
        yield from _run(one, session, samples, meter if power and not meter.absent else None)


def refusals(session: Session, wanted: Sequence[Benchmark]) -> Mapping[str, str]:
    """Return the benchmarks that a device cannot run, with the reason."""
    return {one.name: reason for one in wanted if (reason := one.needs(session.device))}


def _run(one: Benchmark, session: Session, samples: int, meter: Meter | None) -> Iterator[Finding]:
    if one.needs(session.device):
        return
    ready: list[tuple[Finding, Placed, Timing]] = []
    cases = one.cases(session.device)
    _compile(cases, session)
    for case in cases:
        finding = Finding(one, case)
        try:
            placed, prepared = _prepare(finding, session)
            prepared.time(1)
            finding.problem = placed.check()
        except ToprungError as error:
            finding.problem = str(error)
        if finding.problem:
            yield finding
            continue
        timing = Timing(prepared, plan=PLAN)
        timing.warm_up()
        finding.calls = timing.calls
        ready.append((finding, placed, timing))
    for _ in range(samples):
        for finding, placed, timing in ready:
            timing.sample(session.clock_mhz)
            finding.seconds, finding.clocks_mhz = timing.seconds, timing.clocks
            if placed.read is not None:
                finding.values.append(placed.read())
                continue
            value = one.unit.figure(finding.case.work, timing.seconds[-1], timing.clocks[-1], session.device.compute_units)
            finding.values += [] if value is None else [value]
    for finding, placed, timing in ready:
        finding.problem = placed.check()  # what was timed was right to the end
        if meter is not None and finding.case.power:
            finding.watts = _power(timing, meter)
        if finding.problem:
            finding.values.clear()
        yield finding


def _compile(cases: Sequence[Case], session: Session) -> None:
    """Fill the cache with binaries, several at a time where the compiler is NVRTC, which allows it."""
    if session.device.backend != "cuda" or len(cases) == 1:
        return

    def one(case: Case) -> None:
        with contextlib.suppress(ToprungError):  # said when its turn comes
            source_kernel(case.source, session)

    one(cases[0])  # which loads the compiler
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(one, cases[1:]))


def _prepare(finding: Finding, session: Session) -> tuple[Placed, Bound]:
    case = finding.case
    kernel = source_kernel(case.source, session)
    finding.resources = kernel.resources
    if session.device.backend == "cuda" and case.power:
        with contextlib.suppress(MissingExtra):  # without the disassembler
            finding.reads = inspect_source(case.source, session.device.arch).loop.reads
    placed = case.place(session)
    launch = session.bind(kernel, (case.groups,), (case.local,), placed.args)
    return placed, Bound(launch, session, case.synchronous)


def _power(timing: Timing, meter: Meter) -> float:
    """Return watts over ``POWER_SECONDS`` of launches, after half as long of the same."""
    for measured in (False, True):
        before, start = meter.joules(), time.perf_counter()
        while time.perf_counter() - start < POWER_SECONDS / (1 if measured else 2):
            timing.prepared.time(timing.calls)
        if measured:
            return (meter.joules() - before) / (time.perf_counter() - start)
    raise AssertionError
