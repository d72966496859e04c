"""The one loop that measures products: each competitor is verified on hostile operands, then all take turns at being timed.

Competitors take turns sample by sample (A B A B …), so that a drift of clocks or of the machine's load meets all of them. Before
each sample its competitor runs for a while, unmeasured: a GPU's clock follows the power of what ran before with some delay, and
a sample right behind a hungrier neighbour reads too slow. Modes:

``warm``       the same operands again and again, in short bursts
``cold``       operand sets in turn that together are larger than any cache
``sustained``  two seconds of the same competitor before each sample of a second, with energy where it can be read
``held``       as warm, with the queue held until calls are in it: what the device takes however slow the host is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from toprung.backends.base import Resources, Session
from toprung.backends.waiting import NotEnded
from toprung.errors import ToprungError, Unsupported
from toprung.lab.baselines import Peer
from toprung.lab.competitor import BoundCompetitor, Competitor, Rotating, RungCompetitor, refuse_what_cannot_fit
from toprung.lab.harness.measure import BURST, HELD, SUSTAINED, Measurement, SamplingPlan, Timing
from toprung.lab.harness.power import Meter
from toprung.oracle.check import WHOLE_UP_TO, Operands, Oracle, Verdict, hostile
from toprung.oracle.data import Distribution
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem
from toprung.tile import Tile

MODES = ("warm", "cold", "sustained", "held")

SAMPLES: Mapping[str, int] = MappingProxyType({"warm": 9, "cold": 9, "sustained": 3, "held": 9})
"""Samples of each competitor in each mode."""

SAMPLING: Mapping[str, SamplingPlan] = MappingProxyType({"warm": BURST, "cold": BURST, "sustained": SUSTAINED, "held": HELD})
"""Sampling plan of each mode, before the device's settling time is added."""

SETTLE_SECONDS: Mapping[str, float] = MappingProxyType({"gpu": 0.1, "cpu": 0.005, "other": 0.02})
"""Least seconds that a competitor runs before each of its samples, by kind of device. On a GPU the power it draws must settle, on a
CPU its caches and threads. ``benchmarks/settling.py`` measures how much an H200 needs."""

PEER_SETTLE_SECONDS: Mapping[str, float] = MappingProxyType({"gpu": 0.5, "cpu": 0.005, "other": 0.05})
"""Least settling seconds of peers, which others are measured against: long enough on an H200 that cuBLAS, beside any neighbour, is
within 1 % of itself alone. There are few of them: as much before each sample of each rung would make a ladder take five times as
long."""

COLD_BYTES: Mapping[str, int] = MappingProxyType({"gpu": 256 << 20, "cpu": 128 << 20, "other": 256 << 20})
"""Bytes of operands that rotate in ``cold`` mode: more than twice the L2, or a CPU's last cache, of any device of the kind so far
(an H200's L2 has 50 MB, a B200's 126). A problem that is this large by itself is cold already."""

MOST_SETS = 512

CALL_FLOPS: Mapping[str, float] = MappingProxyType({"gpu": 1e13, "cpu": 2e10, "other": 1e11})
BUILD_SECONDS, REFERENCE_FLOPS = 1.0, 2e10
"""Rough speeds of a kernel, by kind of device, and of the float64 reference, in operations a second, and the time of a build, for
estimates of how long a comparison takes."""

STEPS = ("building", "running", "checking", "warming", "sampling")
"""States of a competitor in a step that may take long or crash."""

QUIET = ("absent", "unsupported")
"""States of competitors that do not take part, which is no failure."""


@dataclass(frozen=True)
class ComparisonPlan:
    """Plan of a comparison: modes, samples, and what is tolerated.

    Attributes
    ----------
    modes : modes in which all are timed, one after the other
    samples : samples of each competitor by mode, 0 to verify and nothing more; modes that it lacks have those of ``SAMPLES``
    sampling : how samples are taken, by mode; modes that it lacks have what ``SAMPLING`` says and the device's settling time
    each : whether calls are timed by marks around each call, too
    tolerates : exceptions that fail their competitor and leave the others; any other ends the comparison
    shared : whether cold operands are apart in the device's memory only, where no competitor works on the host's arrays
    """

    modes: tuple[str, ...] = ("warm",)
    samples: Mapping[str, int] = field(default_factory=dict)
    sampling: Mapping[str, SamplingPlan] = field(default_factory=dict)
    each: bool = False
    tolerates: tuple[type[Exception], ...] = (Exception,)
    shared: bool = False

    def count(self, mode: str) -> int:
        """Return the number of samples in a mode."""
        return self.samples.get(mode, SAMPLES[mode])

    def sampling_on(self, kind: str, mode: str, of_peer: bool = False) -> SamplingPlan:
        """Return how samples are taken in a mode on a kind of device, of a peer or of anybody else."""
        if (given := self.sampling.get(mode)) is not None:
            return given
        usual, least = SAMPLING[mode], (PEER_SETTLE_SECONDS if of_peer else SETTLE_SECONDS)[kind]
        return replace(usual, settle_seconds=max(usual.settle_seconds, least))

    def rows(self, competitors: Sequence[Competitor]) -> list[Row]:
        """Return a row for each mode and competitor."""
        return [Row(who, mode) for mode in self.modes for who in competitors]

    def sample_seconds(self, problem: Problem, kind: str, mode: str) -> float:
        """Return about how long a sample and its settling take, for the same."""
        call, sampling = problem.flops / CALL_FLOPS[kind], self.sampling_on(kind, mode)
        return max(sampling.settle_seconds, call * (sampling.settle_seconds > 0)) + max(sampling.sample_seconds, call)

    def expected(self, problem: Problem, competitors: int, kind: str) -> dict[str, float]:
        """Return about how many seconds all verdicts and all samples of a problem take, by what ``Row.came_in`` says of them."""
        samples = sum(self.count(mode) * self.sample_seconds(problem, kind, mode) for mode in self.modes)
        verify = BUILD_SECONDS + 3 * problem.flops / CALL_FLOPS[kind]
        verdicts = competitors * verify + problem.flops / REFERENCE_FLOPS
        return {"verdict": verdicts, "sample": competitors * samples}


@dataclass
class Row:
    """A competitor in one mode: a row of every table of measurements.

    Attributes
    ----------
    state : ``waiting``; then what is about to be done: ``building``, ``running`` (once, to be verified), ``checking``, ``warming``
        (up), ``sampling``; ``timing`` between samples; last ``done``, ``dropped`` (its samples stay), ``wrong``, ``failed``,
        ``absent`` or ``unsupported``
    note : why, for the last four
    bound : the competitor with its operands; a row that comes with this and a verdict is not prepared and verified again
    """

    who: Competitor
    mode: str = "warm"
    state: str = "waiting"
    note: str = ""
    verdict: Verdict | None = None
    bound: BoundCompetitor | None = None
    timing: Timing | None = None
    measurement: Measurement | None = None

    @property
    def failed(self) -> bool:
        """True if something that should have worked did not."""
        return self.state in ("wrong", "failed")

    def came_in(self) -> str:
        """Return what has just come in: ``verdict``, ``sample``, or nothing."""
        if self.state in ("timing", "done", "wrong", "failed", "absent", "unsupported") and self.timing is None:
            return "verdict"
        return "sample" if self.state in ("timing", "done") and self.timing and self.timing.seconds else ""

    @property
    def number(self) -> int:
        """The rung's number; 0 for whoever is none."""
        return self.who.rung.number if isinstance(self.who, RungCompetitor) else 0

    @property
    def variant(self) -> str:
        """Switches of a rung that are set, as text."""
        return self.who.variant if isinstance(self.who, RungCompetitor) else ""

    @property
    def name(self) -> str:
        """Name of the competitor, with its variant."""
        return f"{self.who.name} {self.variant}".rstrip()

    @property
    def label(self) -> str:
        """Number and variant."""
        return f"{self.number} {self.variant}".rstrip()

    @property
    def idea(self) -> str:
        """Title of the competitor, a few words."""
        return self.who.title

    @property
    def precision(self) -> str:
        """Promised precision, by its name in ``toprung.oracle.precision``."""
        return self.who.promise.precision

    @property
    def tile(self) -> Tile | None:
        """The tile of a rung that was built."""
        return self.who.tile if isinstance(self.who, RungCompetitor) else None

    @property
    def resources(self) -> Resources | None:
        """Registers and memory of a rung's kernel, once it was built."""
        return self.who.resources if isinstance(self.who, RungCompetitor) else None


class PlacedProblem:
    """A problem with hostile operands in a device's memory, and the float64 reference.

    Parameters
    ----------
    whole : most rows or columns of an output that is checked whole
    alone : context that holds the device: operands are copied, kernels run and timed in it; results are checked outside

    Raises
    ------
    OutOfDeviceMemory
        the operands do not fit
    """

    def __init__(
        self, problem: Problem, session: Session, distribution: str | Distribution = "uniform", seed: int = 0,
        whole: int = WHOLE_UP_TO, alone: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        refuse_what_cannot_fit(problem, session.device)
        self.problem, self.session, self.alone = problem, session, alone
        self.operands = _operands(problem, distribution, seed)
        with alone():
            self.memory = OnDevice(self.operands, session)
        self.oracle = Oracle(self.operands, whole)
        self._copies: dict[bool, list[OnDevice]] = {}

    def copies(self, shared: bool = False) -> list[OnDevice]:
        """Return enough sets of the operands that none stays in a cache; none where one set is too large for that by itself.

        ``shared``: apart in the device's memory alone, where nobody computes on the host's arrays.
        """
        if shared not in self._copies:
            bytes_a_set = sum(m.nbytes for m in self.problem.matrices)
            wanted, flat = COLD_BYTES[self.session.device.kind], self.operands.flat
            count = min(MOST_SETS, max(3, -(-wanted // bytes_a_set))) if bytes_a_set < wanted else 0
            made = (
                self.operands if shared else replace(self.operands, flat={n: f.copy() for n, f in flat.items()})
                for _ in range(count)
            )  # fmt: skip
            self._copies[shared] = [OnDevice(one, self.session) for one in made]
        return self._copies[shared]


def compare(problem: PlacedProblem, rows: Sequence[Row], plan: ComparisonPlan = ComparisonPlan()) -> Iterator[Row]:  # frozen
    """Verify the competitors of all rows, then time those that were right in turns, mode by mode; yields a row at each change.

    A row is yielded before each step that may take long or crash, with the step as its state, and when a sample has come in. Who
    iterates may set a row's state to ``dropped``: it gets no further sample. Ending the iteration early loses no sample either.
    """
    first: dict[int, Row] = {}
    try:
        for row in rows:
            if (same := first.setdefault(id(row.who), row)) is row:
                yield from _verified(problem, row, plan)
            else:  # the same competitor in another mode
                row.state, row.note, row.verdict, row.bound = same.state, same.note, same.verdict, same.bound
        for mode in plan.modes:
            with problem.alone():
                yield from _timed(problem, [r for r in rows if r.mode == mode and r.state == "timing"], plan, mode)
    except NotEnded as error:
        row = next(r for r in rows if r.state in STEPS)
        row.state, row.note = "failed", str(error)
        raise


def _verified(problem: PlacedProblem, row: Row, plan: ComparisonPlan) -> Iterator[Row]:
    """Prepare a competitor, run it once and grade it by its own promise; its state says ``timing`` if it was right."""
    if row.bound is not None and row.verdict is not None:
        row.state = "timing"
        return
    if reason := row.who.absent(problem.session.device):
        row.state, row.note = "absent", reason
        yield row
        return
    row.note, row.verdict, row.timing, row.measurement = "", None, None, None
    try:
        row.state = "building"
        yield row
        bound = row.who.prepare(problem.memory)
        row.state = "running"
        yield row
        with problem.alone():
            bound.reset()
            bound.time(1)
            found = bound.fetch()
        row.state = "checking"
        yield row
        row.verdict = problem.oracle.verify(found, row.who.promise.precision)
    except plan.tolerates as error:
        row.state, row.note = "unsupported" if isinstance(error, Unsupported) else "failed", said(error)
    else:
        if row.verdict.right:
            row.state, row.bound = "timing", bound
        else:
            row.state, row.note = "wrong", row.verdict.problems[0]
    yield row


def _timed(problem: PlacedProblem, rows: Sequence[Row], plan: ComparisonPlan, mode: str) -> Iterator[Row]:
    """Warm up, then sample in turns; operands of the mode's own are given back at its end."""
    device, count = problem.session.device, plan.count(mode)
    if not count:
        for row in rows:
            row.state = "done"
        return
    sets = problem.copies(plan.shared) if mode == "cold" else []
    meter = Meter(device) if mode == "sustained" else None
    joules = meter.joules if meter and not meter.absent else None
    for row in rows:
        assert row.bound is not None
        row.state = "warming"
        yield row
        if row.state == "dropped":
            continue
        try:
            sampling = plan.sampling_on(device.kind, mode, isinstance(row.who, Peer))
            row.timing = Timing(Rotating([row.who.prepare(s) for s in sets]) if sets else row.bound, plan=sampling)
            row.timing.warm_up()
            row.state = "timing"
        except plan.tolerates as error:
            row.state, row.note, row.timing = "failed", said(error), None
        yield row
    for turn in range(count):
        for row in rows:
            if row.state != "timing" or row.timing is None or row.verdict is None:
                continue
            row.state = "sampling"
            yield row
            row.timing.sample(problem.session.clock_mhz, joules)
            if plan.each:
                row.timing.each_seconds.append(row.timing.prepared.time_each(row.timing.calls))
            row.measurement = row.timing.measurement(row.who.describe(device), problem.problem, row.verdict, mode=mode)
            row.state = "done" if turn == count - 1 else "timing"
            yield row
    for row in rows:
        row.timing = None


_last: list[Operands] = []
"""The operands that were made last: transposes of one square product have the same, and large ones take long to draw."""


def _operands(problem: Problem, distribution: str | Distribution, seed: int) -> Operands:
    """Return ``hostile`` operands, or the last ones' arrays where only the transposes differ."""
    scalars = [problem.describe().get(name) for name in ("alpha", "beta")]
    for last in _last:
        same = last.problem.matrices == problem.matrices and scalars == [last.problem.describe().get(n) for n in ("alpha", "beta")]
        if same and distribution in (last.distribution.name, last.distribution) and seed == last.seed:
            return replace(last, problem=problem)
    _last.clear()  # before the next ones are made: both may not fit
    _last.append(hostile(problem, distribution, seed))
    return _last[0]


def said(error: Exception) -> str:
    """Return an exception as a sentence; one that is not of ours with its type."""
    return str(error) if isinstance(error, ToprungError) else f"{type(error).__name__}: {error}"
