"""Progress of a command: a live table on a terminal, and a line a step, with an estimate, where output goes to a file or a pipe."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from toprung.backends.base import Session
from toprung.cli.common import console, errors_console, say, show
from toprung.cli.streams import reader_gone
from toprung.errors import OutOfDeviceMemory
from toprung.lab.competitor import Competitor
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.oracle.problem import Problem
from toprung.report.grid import Grid

QUIET_SECONDS = 2.0
"""Seconds between two lines, and before the first: what is over sooner needs none."""


def duration(seconds: float) -> str:
    """Return a duration as a person says it: ``8 s``, ``3 min 20 s``, ``1 h 5 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of sizes by kind."""
    found: dict[str, float] = {}
    for part in parts:
        for kind, size in part.items():
            found[kind] = found.get(kind, 0.0) + size
    return found


class Progress:
    """Progress of a command, as a context.

    On a terminal what ``table`` gives is drawn live, with a line below it; elsewhere a line a step goes to standard error, so that
    standard output has the result alone.

    Parameters
    ----------
    total : size of all steps together in any unit, or, as predicted seconds, of the steps of each kind; nothing where it is not
        known. What is left of a kind is estimated by how long its steps have taken so far: kernels may be built slowly and then run
        fast. A kind of which no step is over takes as long as predicted
    budget : seconds after which the command ends, whatever is left
    """

    def __init__(self, total: float | Mapping[str, float] = 0.0, budget: float | None = None) -> None:
        self._budget = math.inf if budget is None else budget
        self._total = dict(total) if isinstance(total, Mapping) else {"": total}
        self._unbegun = 1.0 if isinstance(total, Mapping) else 0.0
        self._done, self._took = dict.fromkeys(self._total, 0.0), dict.fromkeys(self._total, 0.0)
        self._text, self._stepped = "", time.monotonic()
        self._start = self._said = time.monotonic()
        self._live: Live | None = None
        self.table: Callable[[], RenderableType] | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        """True if the budget is used up."""
        return self.elapsed > self._budget

    def __enter__(self) -> Progress:
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._drawn)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self.table, self._text = None, ""
            self._live.stop()

    def step(self, text: str, size: float = 0.0, kind: str = "") -> None:
        """Say what is done now, or has been done; ``size`` of a kind counts as done, and took the time since the last such step.

        Raises
        ------
        KeyboardInterrupt
            the reader of standard output has gone
        """
        if reader_gone():
            raise KeyboardInterrupt
        now, self._text = time.monotonic(), text
        if size:
            self._done[kind] += size
            self._took[kind] += now - self._stepped
            self._stepped = now
        if text and self._live is None and now - self._said >= QUIET_SECONDS:
            self._said = now
            say(self.line(), to=errors_console)

    def pause(self) -> None:
        """Count the time since the last step to no kind: it says nothing about how long later steps take."""
        self._stepped = time.monotonic()

    def leave_out(self, sizes: Mapping[str, float]) -> None:
        """Leave out what is left of a part: steps by kind."""
        for kind, size in sizes.items():
            self._total[kind] -= size

    def left(self) -> float:
        """Return about how many seconds are left; 0 where nothing is known."""
        seconds = 0.0
        for kind, total in self._total.items():
            a_unit = self._took[kind] / self._done[kind] if self._done[kind] else self._unbegun
            seconds += max(0.0, total - self._done[kind]) * a_unit
        return min(seconds, max(0.0, self._budget - self.elapsed))

    def line(self) -> str:
        """Return what is being done, the time so far, and an estimate of the rest."""
        passed, left = self.elapsed, self.left()
        said = f"{self._text}: {duration(passed)}" if self._text else duration(passed)
        return said + (f", about {duration(left)} to go" if left >= 0.5 and passed > 1 else "")

    def _drawn(self) -> RenderableType:
        line = Text(self.line(), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self.table(), line) if self.table else line if self._text else Text("")


class Pace:
    """Steps of one problem's comparison, sized in seconds: as planned, and for samples by the warm-up once that is over.

    Attributes
    ----------
    left : what is left of each kind, for ``Progress.leave_out`` where a comparison ends early
    """

    def __init__(self, progress: Progress, plan: ComparisonPlan, problem: Problem, kind: str, competitors: int) -> None:
        self.progress, self.plan, self.problem, self.kind = progress, plan, problem, kind
        self.left = plan.expected(problem, competitors, kind)
        self._verdict = self.left["verdict"] / max(1, competitors)
        self._samples: dict[int, float] = {}

    def step(self, row: Row, said: str) -> bool:
        """Say what happened to a row; return True if a verdict or a sample has come in."""
        timing, planned = row.timing, self.plan.sample_seconds(self.problem, self.kind, row.mode)
        if row.state == "timing" and timing is not None and not timing.seconds:  # its warm-up is over
            known = self._samples[id(row)] = timing.sample_seconds
            more = self.plan.count(row.mode) * (known - planned)
            self.left["sample"] += more
            self.progress.leave_out({"sample": -more})
            self.progress.pause()
        came = row.came_in()
        size = {"verdict": self._verdict, "sample": self._samples.get(id(row), planned), "": 0.0}[came]
        if came:
            self.left[came] -= size
        self.progress.step(said, size, came)
        return bool(came)


class Comparisons:
    """Comparison of competitors on several problems in turn, with a table for each problem.

    What was measured before Ctrl-C or the budget's end is kept.

    Attributes
    ----------
    problems : pairs of a name to show and a problem
    expected : predicted seconds of each problem, by kind of step
    failures : a line for each failure
    cut : True if the budget ended the run
    unbegun : names of the problems that the budget left no time for
    """

    def __init__(
        self, problems: Sequence[tuple[str, Problem]], competing: Sequence[Competitor], session: Session, plan: ComparisonPlan,
        wide: bool, budget: float | None,
    ) -> None:  # fmt: skip
        self.problems, self.competing, self.session, self.plan, self.wide = problems, competing, session, plan, wide
        self.expected = [plan.expected(p, len(competing), session.device.kind) for _, p in problems]
        self.budget, self.cut = budget, False
        self.failures: list[str] = []
        self.unbegun: list[str] = []

    def all(self, store: Callable[[bool], None] = lambda unfinished: None) -> bool:
        """Compare on each problem in turn; return True if Ctrl-C ended the run.

        ``store``: called after each problem, with True while the run is incomplete.
        """
        with Progress(total(self.expected), self.budget) as progress:
            for at, (name, problem) in enumerate(self.problems):
                self.cut = self.cut or progress.is_over
                if self.cut:
                    self.unbegun = [name for name, _ in self.problems[at:]]
                    break
                rows, interrupted, skipped = self.plan.rows(self.competing), False, False
                progress.table = functools.partial(self._fitted, rows, name, problem)
                pace = Pace(progress, self.plan, problem, self.session.device.kind, len(self.competing))
                try:
                    progress.step(f"{name}: making the operands")
                    for row in compare(PlacedProblem(problem, self.session), rows, self.plan):
                        if pace.step(row, said(row, name)) and progress.is_over:
                            self.cut = True
                            break
                except (OutOfDeviceMemory, MemoryError) as error:
                    self.skip(f"{name}: skipped: {error}")
                    skipped = not any(row.measurement for row in rows)  # measurements in an earlier mode are kept
                except KeyboardInterrupt:
                    interrupted = True
                progress.table = None
                progress.leave_out(pace.left)
                if skipped:
                    continue
                for row in rows:
                    row.bound = None  # gives memory back
                    row.state = row.state if row.measurement or row.note else "dropped"
                show(self.table(rows, name, problem), self.wide)
                self.finish(rows, name)
                if interrupted:
                    return True
                store(self.cut or at + 1 < len(self.problems))
        return False

    def _fitted(self, rows: list[Row], name: str, problem: Problem) -> Group:
        return self.table(rows, name, problem).fitted(console.width)[0]

    def table(self, rows: list[Row], name: str, problem: Problem) -> Grid:
        """Return a problem's table, with the rows measured so far."""
        raise NotImplementedError

    def skip(self, line: str) -> None:
        """Note that a problem is skipped; ``line`` says why: it does not fit the memory."""
        raise NotImplementedError

    def finish(self, rows: list[Row], name: str) -> None:
        """Note the measurements and failures of a problem, after its table was printed."""
        raise NotImplementedError


def said(row: Row, name: str) -> str:
    """Return a sentence on the state of a problem's row, for the line below its table."""
    who = f"{name}: {row.name}" + (f" {row.mode}" if row.mode != "warm" else "")
    if row.timing is None:
        return f"{who} {row.state if row.state != 'timing' else 'is right'}"
    times = len(row.timing.seconds)
    return f"{who} timed {times} ×" if times else f"{who} warmed up"
