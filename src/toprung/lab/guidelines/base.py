"""Guideline → Finding: a piece of advice, put to the test on a device.

A guideline is a module of this folder with ``GUIDELINE``, and a kernel text beside it (several may share one). Its cases do the
same work in different ways. Each is verified first; then they take turns, sample by sample, as competitors do in ``measure``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Kernel, Launch, Session, Source
from toprung.errors import BuildError, LaunchError, OutOfDeviceMemory, Unsupported, WrongResult
from toprung.kernels.build import source_kernel
from toprung.lab.competitor import BoundCompetitor, HostClock
from toprung.lab.harness.measure import SAMPLES, Timing
from toprung.lab.harness.stats import Interval, paired_ratio
from toprung.oracle.placed import copied, fetched
from toprung.oracle.problem import F32, F64, UNIT_ROUNDOFF

TEXTS = Path(__file__).parent
HOLDS, FAILS, UNTESTED, WRONG = "holds", "does not hold here", "not testable here", "failed"
UNDECIDED = "undecided: too much noise"
FASTER, NO_SLOWER = "faster", "no slower"
MARGIN = 0.1
"""Least relative gain that counts: a case that is faster by less counts as no faster, and one slower by less as no slower."""
TURNS = 2 * SAMPLES + 1
"""Samples of each case: a verdict hangs on the interval, not only on the median."""
UNWRITTEN = np.float32(np.nan)
"""Fill of an output before the run that is verified."""


@dataclass(frozen=True)
class Case:
    """One way of doing a guideline's work.

    Attributes
    ----------
    label : what is different about it
    defines, flags : macros and build options of its kernel
    """

    label: str
    defines: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guideline:
    """A piece of advice and the experiment that tests it.

    Attributes
    ----------
    title : the subject
    paper : what the paper says, in our words
    cases : ways of doing the same work
    advised, against : places of the two cases that decide: what the paper recommends, and what it warns of or finds no better
    unit : what is counted a second, in thousands of millions
    experiment : yields the cases on a device, in their order. Raises Unsupported where there is nothing to test
    claim : what the paper says of the first of the two: ``faster`` or ``no slower``
    text : stem of the kernel text; the module's own name if empty
    name : the module's name, given by whoever finds it
    """

    title: str
    paper: str
    cases: tuple[Case, ...]
    advised: int
    against: int
    unit: str
    experiment: Callable[[Lab], Trials]
    claim: str = FASTER
    text: str = ""
    name: str = ""

    def source(self, case: Case) -> Source:
        """Return the source that is compiled for a case."""
        path = TEXTS / f"{self.text or self.name}.cl"
        return Source(f"guidelines/{path.stem}", path.read_text("utf-8"), "trial", case.defines, flags=case.flags)

    def run(self, session: Session) -> Finding:
        """Verify every case, time them in turns, and judge. What goes wrong is in the finding; nothing wrong is timed."""
        finding = Finding(self.name, self.title, self.paper, self.unit, UNTESTED, "")
        lab = Lab(self, session)
        try:
            trials = list(self.experiment(lab))
            errors = [trial.verify() for trial in trials]
            timings = [Timing(trial) for trial in trials]
            for timing in timings:
                timing.warm_up()
            for _ in range(TURNS):
                for timing in timings:
                    timing.sample(session.clock_mhz)
        except Unsupported as reason:
            return replace(finding, reason=str(reason))
        except (BuildError, LaunchError, OutOfDeviceMemory, WrongResult) as error:
            return replace(finding, verdict=WRONG, reason=str(error))
        finally:
            lab.close()
        ways = tuple(
            Way(c.label, t.amount, tuple(s.seconds), s.calls, t.on_host, e, tuple(s.clocks))
            for c, t, s, e in zip(self.cases, trials, timings, errors, strict=True)
        )
        return self._judged(replace(finding, ways=ways))

    def _judged(self, finding: Finding) -> Finding:
        good, other = finding.ways[self.advised], finding.ways[self.against]
        speed = paired_ratio([s / other.amount for s in other.seconds], [s / good.amount for s in good.seconds])
        least = 1 + MARGIN if self.claim == FASTER else 1 - MARGIN
        verdict = HOLDS if speed.low > least else FAILS if speed.high <= least else UNDECIDED
        count = len(finding.ways)
        return replace(
            finding, verdict=verdict, advised=self.advised % count, against=self.against % count, claim=self.claim, speed=speed
        )


@dataclass(frozen=True)
class Way:
    """A case as it was measured.

    Attributes
    ----------
    amount : what a call does, in thousands of millions of the guideline's unit
    seconds : a call's time, one for each sample of ``calls`` calls
    on_host : whether the host's clock was read, because several queues took part
    error : largest relative error of an element
    """

    label: str
    amount: float
    seconds: tuple[float, ...]
    calls: int
    on_host: bool
    error: float
    clocks_mhz: tuple[float | None, ...] = ()

    @property
    def figure(self) -> float:
        """The speed at the median."""
        return self.amount / statistics.median(self.seconds) if self.seconds else math.nan

    def describe(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**vars(self), "figure": self.figure}


@dataclass(frozen=True)
class Finding:
    """Finding about a guideline on a device.

    Attributes
    ----------
    verdict : ``holds``, ``does not hold here``, ``undecided`` (the interval lies across the limit), ``not testable here`` or
        ``failed``
    reason : why there is nothing measured
    ways : every case, in the guideline's order
    advised, against, claim : as the guideline has them
    speed : speed of the advised case over the other's, with its interval
    """

    name: str
    title: str
    paper: str
    unit: str
    verdict: str
    reason: str
    ways: tuple[Way, ...] = ()
    advised: int = 0
    against: int = 0
    claim: str = FASTER
    speed: Interval | None = None

    def describe(self) -> dict[str, Any]:
        """Return it as JSON."""
        speed = self.speed and [self.speed.value, self.speed.low, self.speed.high]
        return {**vars(self), "ways": [w.describe() for w in self.ways], "speed": speed}

    @staticmethod
    def read(entry: Mapping[str, Any]) -> Finding:
        """Return what ``describe`` wrote; raises KeyError or TypeError if the entry is damaged."""
        ways = tuple(
            Way(
                w["label"], float(w["amount"]), tuple(map(float, w["seconds"])), int(w["calls"]), bool(w["on_host"]),
                float(w["error"]), tuple(w["clocks_mhz"]),
            )
            for w in entry["ways"]
        )  # fmt: skip
        return Finding(
            entry["name"], entry["title"], entry["paper"], entry["unit"], entry["verdict"], entry["reason"], ways,
            int(entry["advised"]), int(entry["against"]), entry["claim"],
            Interval(*map(float, entry["speed"])) if entry["speed"] else None,
        )  # fmt: skip


class Queues(HostClock):
    """The host's clock, read when several queues are empty.

    It holds no queue back: each would need a gate of its own.
    """

    def __init__(self, queues: Sequence[Session]) -> None:
        self._queues = queues

    def mark(self) -> float:
        for queue in self._queues:
            queue.submit()
        for queue in self._queues:
            queue.synchronize()
        return super().mark()


class Trial(BoundCompetitor):
    """A case ready to run on a device.

    Attributes
    ----------
    amount : what a call does, in thousands of millions of the guideline's unit
    on_host : whether the host's clock is read
    """

    def __init__(
        self, label: str, session: Session, call: Callable[[], object], output: Buffer, expected: F32 | F64, amount: float,
        limit: float, queues: Sequence[Session],
    ) -> None:  # fmt: skip
        self.label, self.amount, self.on_host = label, amount, bool(queues)
        self.clock = Queues(queues) if queues else session
        self._session, self._call, self._output, self._expected, self._limit = session, call, output, expected, limit

    def reset(self) -> None:
        self._session.upload(self._output, np.full(self._expected.size, UNWRITTEN, np.float32))

    def run(self) -> None:
        self._call()

    def fetch(self) -> F32:
        return fetched(self._output, self._session, self._expected.size, np.float32)

    def verify(self) -> float:
        """Run once and return the largest relative error; WrongResult beyond the limit, in units of the roundoff."""
        self.reset()
        self.time(1)
        result, expected = self.fetch(), self._expected.ravel()
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(result.astype(np.float64) - expected)
            errors = np.where(off == 0, 0.0, off / np.abs(expected))
        wrong = ~(errors <= self._limit * UNIT_ROUNDOFF)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise WrongResult(
                f"{self.label}: element {i} is {result[i]!s}, not {expected[i]!s}; {int(wrong.sum())} of {wrong.size} are wrong"
            )
        return float(errors.max(initial=0.0))


Trials = Iterator[Trial]


class Lab:
    """Tools of an experiment: a session, and the guideline's kernels compiled for it."""

    def __init__(self, guideline: Guideline, session: Session) -> None:
        self.guideline, self.session, self.device = guideline, session, session.device
        self._queues: list[Session] = []

    def pick(self, gpu: int, cpu: int) -> int:
        """Return the size for the kind of device at hand."""
        return cpu if self.device.kind == "cpu" else gpu

    def kernel(self, case: Case) -> Kernel:
        """Return a case's kernel, compiled or from the cache."""
        return source_kernel(self.guideline.source(case), self.session)

    def place(self, array: NDArray[Any]) -> Buffer:
        """Return an array's copy in device memory."""
        return copied(array, self.session)

    def launch(self, case: Case, groups: int, local: int, *args: Buffer | np.generic) -> Launch:
        """Launch a case's kernel on ``groups`` work-groups of ``local``."""
        return self.session.bind(self.kernel(case), (groups,), (local,), args)

    def queue(self) -> Session:
        """Open another queue of the session, closed with the lab."""
        self._queues.append(self.session.branch())
        return self._queues[-1]

    def close(self) -> None:
        """Close the queues."""
        for queue in self._queues:
            queue.close()

    def trial(
        self, case: Case, call: Callable[[], object], output: Buffer, expected: F32 | F64, amount: float, limit: float = 0.0,
        queues: Sequence[Session] = (),
    ) -> Trial:  # fmt: skip
        """Return a case that can be timed.

        Parameters
        ----------
        call : puts one call into its queue or queues
        expected : what it must leave in ``output``
        amount : what a call does, in units of the guideline (not yet in thousands of millions)
        limit : relative error accepted, in units of the roundoff
        queues : where the work spreads over several, all of them: the host's clock is read then
        """
        return Trial(f"{self.guideline.name}, {case.label}", self.session, call, output, expected, amount / 1e9, limit, queues)


def steps(values: NDArray[np.uint32], count: int) -> F32:
    """Compute as the source ``work`` does for each value: a chain of ``count`` multiply-adds in whole numbers."""
    known = np.arange(int(values.max()) + 1, dtype=np.uint32)  # few, so that a long chain is soon computed
    v = known.copy()
    for _ in range(count):
        v = v * np.uint32(1664525) + known
    result: F32 = (v >> np.uint32(8)).astype(np.float32)[values]
    return result
