"""``toprung ladder``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from toprung import backends
from toprung.backends.base import Session
from toprung.cli.common import (
    LADDERS,
    WIDE,
    checked_file,
    console,
    end,
    json_option,
    parse_numbers,
    parse_seconds,
    parse_sizes,
    parse_switches,
    result_file,
    say,
    show,
    size_name,
    table_width,
    with_settings,
)
from toprung.cli.progress import Comparisons, duration
from toprung.device import Device
from toprung.errors import BadArgument, BuildError, LaunchError, OutOfDeviceMemory, WrongResult
from toprung.lab.competitor import Competitor, refuse_what_cannot_fit
from toprung.lab.explain import RungBounds
from toprung.lab.harness import bandwidth, results
from toprung.lab.harness.bandwidth import Bandwidth
from toprung.lab.harness.baseline import watched
from toprung.lab.harness.climb import SAMPLES, best_for, default_sizes, find_vendors, problem_of, refusals, runnable, variants
from toprung.lab.harness.compare import QUIET, ComparisonPlan, Row
from toprung.lab.harness.environment import environment
from toprung.lab.rung import Ladder, ladder, out_of_place, select
from toprung.oracle.problem import Problem
from toprung.paths import is_stream
from toprung.report import plot as pictures
from toprung.report.grid import Grid
from toprung.report.table import ladder_table, sweep_tables
from toprung.report.text import Limits
from toprung.tune.apart import apart


def ladder_command(
    name: Annotated[str, typer.Argument(metavar="LADDER", help=LADDERS, show_default=False)] = "",
    device: Annotated[
        str | None, typer.Option(help="id or part of a name, several with commas; by default the best, through every backend")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="512, 35x79x19 (M x N x K), 256:1024:256, or several with commas")] = None,
    rungs: Annotated[str | None, typer.Option(help="1-10, or 2,7; 0 is the vendor's library")] = None,
    switch: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a rung's switch; may be repeated")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the problem: trans=T, beta=1, lda=…")] = None,
    json: Annotated[
        Path | None,
        json_option(
            "store every sample and all circumstances in this file, not the user's own folder; a further device's backend is added"
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the result: a .png or .svg file", callback=result_file)] = None,
    each_launch: Annotated[
        bool, typer.Option("--each-launch", help="time also by marks around each call, to see what that adds to the loop's time")
    ] = False,
    budget: Annotated[str | None, typer.Option(help="end after about 60s, 5m, 1h; what was measured by then is kept")] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Run a ladder's kernels on a device: each verified, then timed in turns beside the vendor's library.

    Examples:

      toprung ladder kepler

      toprung ladder kepler --sizes 35x79x19,512 --rungs 1,6-10 --json out.json

      toprung ladder kepler --rungs 8 --switch INDEX32=1

      toprung ladder matvec --sizes 100000x1100 --set trans=T

      toprung ladder turing --sizes 256:6144:256 --plot turing.png
    """
    found = ladder(name)
    places = _devices(device, found)
    numbers = [r.number for r in found.rungs]
    chosen = numbers if rungs is None else parse_numbers(rungs, [0, *numbers], f"rung of {name}")
    climbed = select(found.rungs, chosen)
    switches = parse_switches(switch or [])
    wanted = parse_sizes(sizes) if sizes is not None else list(default_sizes(found, places[0]))
    problems = {size_name(size): problem_of(found, size) for size in wanted}
    if setting:
        changed = [with_settings(p, setting) for p in problems.values()]
        problems = {str(p): p for p in changed}
    able = runnable(climbed, places)
    idle, places = [p for p in places if p not in able], able
    vendors = {where.id: find_vendors(where, found) for where in places}
    for where in places:
        variants(climbed, where, switches)  # refuses bad switches before anything starts
    if plot is not None:
        pictures.check(plot)
    records, drawings = _files(json, places), _files(plot, places)
    seconds = parse_seconds(budget) if budget is not None else None
    smallest = min(problems.values(), key=lambda p: sum(m.nbytes for m in p.matrices))
    for where in places:
        refuse_what_cannot_fit(smallest, where)  # larger sizes beside one that fits are left out, and said

    everything: dict[str, list[Row]] = {}
    failures: list[str] = []
    interrupted = False
    for where, record_of, drawing in zip(places, records, drawings, strict=True):
        baselines, why_not = vendors[where.id]
        competing: list[Competitor] = [*(baselines if 0 in chosen or climbed else []), *variants(climbed, where, switches)]
        if said := out_of_place(climbed, where.kind):
            say(said, "dim")
        with backends.opened(where) as session, apart(competing, where, seconds):
            memory, failed = _memory(session, problems.values())
            run = _Run(found, problems, session, competing, memory, each_launch, wide, seconds)
            interrupted = run.all()
            failed += run.failures
            measured = [row.measurement for rows in run.done.values() for row in rows if row.measurement]
            notes = [*run.notes, *([f"{found.name} promises {found.note}"] if found.note else [])]
            more = {"bandwidth": memory.describe()} if memory else {}
            stored = results.record(
                results.command(), environment(session), measured, failed, interrupted or run.cut, notes=notes, **more
            )
        if why_not:
            say(f"rung 0: {why_not}")
        if found.note:
            say(f"{found.name} promises {found.note}", "dim")
        if left := [] if switches else refusals(climbed, where):
            names = "; ".join(line.partition(":")[0] for line in left)
            say(f"not on {where.id}: {left[0] if len(left) == 1 else f'{names}. Asked for alone, each says why'}", "dim")
        if record_of is not None:
            results.write(record_of, stored)
        elif stored["measurements"]:
            say(results.keep(stored, name), "dim")
        if drawing is not None:
            pictures.ladder(stored, drawing)
        failures += failed
        everything |= {f"{where.backend} {size}" if len(places) > 1 else size: rows for size, rows in run.done.items()}
        if interrupted:
            break
    for where in idle:
        say(f"not on {where.id}: no rung of {name} runs there: {climbed[0].needs(where)}", "dim")
    for grid in sweep_tables(everything, table_width(wide)) if len(everything) > 1 else ():
        show(grid, wide)
    end(failures, interrupted)


def _devices(names: str | None, found: Ladder) -> list[Device]:
    """Return the devices named; by default the best one that runs the ladder, and a GPU through the other backends, too."""
    if names is not None:
        return [backends.find(name) for name in names.split(",")]
    best = best_for(found.rungs)
    if best.kind != "gpu":
        return [best]  # without asking backends that take a second to say what they see
    same = [d for d in backends.devices() if d.kind == "gpu" and d.slug == best.slug and d.backend != best.backend]
    others = {d.backend: d for d in reversed(same)}
    return [best, *others.values()]


def _files(path: Path | None, places: Sequence[Device]) -> list[Path | None]:
    """Return the file of each device: the name given for the first, with the backend behind it for the others."""
    if path is None or len(places) < 2:
        return [path] * len(places)
    if is_stream(path):
        raise BadArgument(f"{path} takes one device's result: name one of {', '.join(d.id for d in places)} with --device")
    return [path, *(checked_file(path.with_stem(f"{path.stem}-{where.backend}")) for where in places[1:])]


def _memory(session: Session, problems: Iterable[Problem]) -> tuple[Bandwidth | None, list[str]]:
    """Measure the memory's bandwidth, where problems are held against it; return it, and what did not work."""
    if not any(p.measured_in == "GB/s" for p in problems):
        return None, []
    try:
        found = bandwidth.measure(session)
    except (BuildError, LaunchError, OutOfDeviceMemory, WrongResult) as error:
        return None, [f"bandwidth: {error}"]
    console.print(str(found), highlight=False)
    return found, []


class _Run(Comparisons):
    """A ladder on one device, over all sizes.

    Attributes
    ----------
    done : rows of each size, by its name
    notes : what a reader of the figures must know: competitors that do not take part, baselines that scatter
    """

    def __init__(
        self, of: Ladder, problems: dict[str, Problem], session: Session, competing: list[Competitor], memory: Bandwidth | None,
        each: bool, wide: bool, budget: float | None,
    ) -> None:  # fmt: skip
        plan = ComparisonPlan(samples={"warm": SAMPLES}, each=each)
        super().__init__(list(problems.items()), competing, session, plan, wide, budget)
        self.of, self.bounds = of, RungBounds(session.device)
        self.limits = Limits(session.device.gflops_per_mhz, memory)
        self.done: dict[str, list[Row]] = {}
        self.notes: list[str] = []

    def all(self, store: Callable[[bool], None] = lambda unfinished: None) -> bool:
        interrupted = super().all(store)
        if self.cut:
            rest = f"; not begun: {', '.join(self.unbegun)}" if self.unbegun else ""
            self._note(f"the budget of {duration(self.budget or 0)} is over: what is above is what had been measured{rest}")
        return interrupted

    def table(self, rows: list[Row], name: str, problem: Problem) -> Grid:
        title = f"{self.of.name} at {name} on {self.session.device}"
        share: Callable[[Row], float | None] | None = None
        if self.bounds.figures:
            share = functools.partial(self.bounds.share, problem=problem)
        return ladder_table(rows, title, self.limits, problem.measured_in, self.plan.each, share)

    def skip(self, line: str) -> None:
        self.failures.append(line)

    def finish(self, rows: list[Row], name: str) -> None:
        self.done[name] = rows
        vendors = [(row.idea, row.measurement) for row in rows if row.number == 0 and row.measurement]
        for line in [*watched(self.session.device, vendors), *self.bounds.notes]:
            self._note(line, "yellow")
        self.bounds.notes.clear()
        for row in rows:
            if row.state in QUIET:
                self._note(f"{row.name} at {name}: {row.note}")
        self.failures += [f"{row.name} at {name}: {row.note}" for row in rows if row.failed]

    def _note(self, line: str, style: str = "dim") -> None:
        self.notes.append(line)
        say(line, style)


COMMANDS = {"ladder": ladder_command}
