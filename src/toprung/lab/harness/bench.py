"""Compare competitors fairly: on the same data, in turns, each verified before it is timed and held to what it promises.

For each problem every competitor is prepared, run once on hostile operands and graded; those that were right then take turns,
sample by sample (A B A B …), in each mode asked for:

``warm``       the same operands again and again, in short bursts
``cold``       operand sets in turn that together are larger than any cache
``sustained``  two seconds of the same competitor before each sample of a second, with energy where it can be read
``held``       as warm, with the queue held until calls are in it: what the device takes however slow the host is
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import ToprungError, UnknownName, Unsupported
from toprung.lab import baselines
from toprung.lab.competitor import BoundCompetitor, Competitor, Rotating, RungCompetitor, refuse_what_cannot_fit
from toprung.lab.harness.library import WAYS
from toprung.lab.harness.measure import BURST, HELD, SUSTAINED, Measurement, SamplingPlan, Timing
from toprung.lab.harness.power import Meter
from toprung.lab.harness.stats import Interval, paired_ratio
from toprung.lab.rung import ladder, ladder_names, rung
from toprung.oracle.check import Operands, Oracle, Verdict, hostile
from toprung.oracle.data import Distribution
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem

MODES = ("warm", "cold", "sustained", "held")
SAMPLES: Mapping[str, int] = {"warm": 9, "cold": 9, "sustained": 3, "held": 9}
"""Turns in each mode."""

PLANS: Mapping[str, SamplingPlan] = {"sustained": SUSTAINED, "held": HELD}
"""How samples are taken where it is not in bursts."""

COLD_BYTES: Mapping[str, int] = {"gpu": 256 << 20, "cpu": 128 << 20, "other": 256 << 20}
"""Operands that rotate in ``cold`` mode: more than twice the last cache of any device of the kind so far (an H200's L2 has 50 MB,
a B200's 126). A problem that is this large by itself is cold already."""

MOST_SETS = 512


@dataclass
class Row:
    """A row of the table: a competitor in one mode.

    Attributes
    ----------
    state : ``waiting``, ``checking``, ``timing``, ``done``, ``wrong``, ``failed``, ``absent`` or ``unsupported``
    note : why, for the last four
    """

    who: Competitor
    mode: str = "warm"
    state: str = "waiting"
    note: str = ""
    verdict: Verdict | None = None
    timing: Timing | None = None
    measurement: Measurement | None = None

    @property
    def failed(self) -> bool:
        """Whether something that should have worked did not."""
        return self.state in ("wrong", "failed")


def competitors(names: Sequence[str]) -> list[Competitor]:
    """Competitors by name: a peer (``cublas``), a rung (``kepler/r07``), a ladder (``kepler``), one of the library's ``WAYS``.

    Raises
    ------
    UnknownName
        with everything that exists
    """
    found: list[Competitor] = []
    for name in names:
        if name in ladder_names():
            found += [RungCompetitor(r) for r in ladder(name).rungs]
        elif name in WAYS:
            found.append(WAYS[name]())
        elif "/" in name:
            found.append(RungCompetitor(rung(name)))
        elif name in (known := [p.name for p in baselines.peers()]):
            found.append(baselines.peer(name))
        else:
            raise UnknownName("competitor", name, [*WAYS, *known, *(f"{n}/rNN" for n in ladder_names())])
    return list({c.name: c for c in found}.values())


def default_competitors(device: Device) -> list[Competitor]:
    """The vendor's library, every other peer that is a fair rival beside the device, and the last rung of each ladder."""
    first, _ = baselines.vendor(device, "gemm")
    others = [p for p in baselines.peers() if device.kind in p.kinds and p is not first]
    others.sort(key=lambda p: p.promise.precision != "fp32")
    last = [RungCompetitor(found.rungs[-1]) for n in ladder_names() if (found := ladder(n)).routine == "gemm" and found.rungs]
    return [*([first] if first else []), *others, *last]


def bench(
    problem: Problem,
    rivals: Sequence[Competitor],
    session: Session,
    modes: Sequence[str] = ("warm",),
    distribution: str | Distribution = "uniform",
    samples: Mapping[str, int] = SAMPLES,
) -> Iterator[list[Row]]:
    """Compare on one problem; yields all rows whenever one changed. The first row of a mode is what the others are compared to.

    Raises
    ------
    OutOfDeviceMemory
        the operands themselves do not fit
    """
    device, meter = session.device, Meter(session.device)
    refuse_what_cannot_fit(problem, device)
    operands = _operands(problem, distribution)
    placed = OnDevice(operands, session)
    rows = [Row(who, mode) for mode in modes for who in rivals]
    oracle = Oracle(operands)
    ready: dict[str, BoundCompetitor] = {}
    for row in rows[: len(rivals)]:
        row.state = "checking"
        yield rows
        if prepared := check(row, placed, oracle):
            ready[row.who.name] = prepared
        yield rows
    for row in rows[len(rivals) :]:
        first = next(r for r in rows if r.who is row.who)
        row.state, row.note, row.verdict = first.state, first.note, first.verdict
    for mode in modes:
        present = [r for r in rows if r.mode == mode and r.who.name in ready]
        sets = copies(operands, session) if mode == "cold" else []
        for row in present:
            try:
                row.timing = Timing(
                    Rotating([row.who.prepare(s) for s in sets]) if sets else ready[row.who.name], plan=PLANS.get(mode, BURST)
                )
                row.timing.warm_up()
            except Exception as error:
                row.state, row.note, row.timing = "failed", _said(error), None
            yield rows
        counted = meter.joules if mode == "sustained" and not meter.absent else None
        for turn in range(samples[mode]):
            for row in present:
                if row.timing and row.verdict:
                    row.timing.sample(session.clock_mhz, counted)
                    row.measurement = row.timing.measurement(row.who.describe(device), problem, row.verdict, mode=mode)
                    row.state = "done" if turn == samples[mode] - 1 else "timing"
                    yield rows
        for row in present:
            row.timing = None  # gives a mode's operand sets back


_last: list[Operands] = []
"""The operands that ``bench`` made last: transposes of one square product have the same, and large ones take long to draw."""


def _operands(problem: Problem, distribution: str | Distribution) -> Operands:
    """``hostile``, or the last one's arrays where only the transposes differ."""
    scalars = [problem.describe().get(name) for name in ("alpha", "beta")]
    for last in _last:
        same = last.problem.matrices == problem.matrices and scalars == [last.problem.describe().get(n) for n in ("alpha", "beta")]
        if same and distribution in (last.distribution.name, last.distribution):
            return replace(last, problem=problem)
    _last.clear()  # before the next ones are made
    _last.append(hostile(problem, distribution))
    return _last[0]


def check(row: Row, placed: OnDevice, oracle: Oracle) -> BoundCompetitor | None:
    """Prepare a competitor, run it once and grade it by its own promise; None, with the reason in the row, if that fails."""
    if reason := row.who.absent(placed.session.device):
        row.state, row.note = "absent", reason
        return None
    try:
        prepared = row.who.prepare(placed)
        prepared.reset()
        prepared.time(1)
        row.verdict = oracle.verify(prepared.fetch(), row.who.promise.precision)
    except Unsupported as error:
        row.state, row.note = "unsupported", str(error)
        return None
    except Exception as error:  # somebody else's code may raise anything, and the others go on
        row.state, row.note = "failed", _said(error)
        return None
    if not row.verdict.right:
        row.state, row.note = "wrong", row.verdict.problems[0]
        return None
    row.state = "timing"
    return prepared


def ratios(measurements: Sequence[Measurement]) -> list[Interval | None]:
    """How many times as fast as the first competitor of its problem and mode each is, samples paired by turn.

    None for the first itself.
    """
    first: dict[tuple[str, str], Measurement] = {}
    found: list[Interval | None] = []
    for m in measurements:
        base = first.setdefault((str(sorted(m.problem.items())), m.mode), m)
        found.append(None if base is m else paired_ratio(base.seconds, m.seconds))
    return found


def copies(operands: Operands, session: Session, shared: bool = False) -> list[OnDevice]:
    """Enough sets of the operands that none stays in a cache; none where one set is too large for that by itself.

    ``shared``: in the device's memory alone, where nobody computes on the host's arrays.
    """
    bytes_a_set = sum(m.nbytes for m in operands.problem.matrices)
    wanted = COLD_BYTES[session.device.kind]
    if bytes_a_set >= wanted:
        return []
    count = min(MOST_SETS, max(3, -(-wanted // bytes_a_set)))
    if shared:
        return [OnDevice(operands, session) for _ in range(count)]
    made = (replace(operands, flat={n: f.copy() for n, f in operands.flat.items()}) for _ in range(count))
    return [OnDevice(copy, session) for copy in made]


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ToprungError) else f"{type(error).__name__}: {error}"
