"""``toprung ladder``."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from toprung import backends
from toprung.backends.base import Session
from toprung.cli.common import console, json_option, parse_numbers, parse_sizes, parse_switches, size_name, with_settings
from toprung.device import Device
from toprung.errors import BuildError, LaunchError, OutOfDeviceMemory, WrongResult
from toprung.lab.explain import RungBounds
from toprung.lab.harness import bandwidth, results
from toprung.lab.harness.bandwidth import Bandwidth
from toprung.lab.harness.climb import Entry, best_for, climb, default_sizes, entries, find_vendors, problem_of, refusals, runnable
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import SAMPLES
from toprung.lab.rung import Ladder, ladder, out_of_place, select
from toprung.oracle.problem import Problem
from toprung.report import plot as pictures
from toprung.report.table import ladder_table, sweep_table
from toprung.report.text import Limits

INTERRUPTED = 130
COLUMNS = 8
"""Sizes side by side in the table of a sweep."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ladder")(ladder_command)


def ladder_command(
    name: Annotated[str, typer.Argument(metavar="LADDER", help="kepler, …")],
    device: Annotated[
        str | None,
        typer.Option(help="id or part of a name, several with commas; by default the best, through every backend"),
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="512, 35x79x19 (M x N x K), 256:1024:256, or several with commas")] = None,
    rungs: Annotated[str | None, typer.Option(help="1-10, or 2,7; 0 is the vendor's library")] = None,
    switch: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a rung's switch; may be repeated")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the problem: trans=T, beta=1, lda=…")] = None,
    json: Annotated[
        Path | None,
        json_option("store every sample and all circumstances in this file; a further device's backend is added to the name"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="draw the result: a .png or .svg file; for several sizes, one more for each rung beside it")
    ] = None,
    each_launch: Annotated[
        bool, typer.Option("--each-launch", help="time also by marks around each call, to see what that adds to the loop's time")
    ] = False,
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
        entries(climbed, where, None, switches)  # refuses bad switches before anything starts
    if plot is not None:
        pictures.check(plot)

    everything: dict[str, list[Entry]] = {}
    failures: list[str] = []
    interrupted = False
    for where in places:
        rivals, why_not = vendors[where.id]
        make = functools.partial(entries, climbed, where, rivals if 0 in chosen or climbed else None, switches)
        if said := out_of_place(climbed, where.kind):
            console.print(said, style="dim", markup=False, highlight=False, soft_wrap=True)
        with backends.opened(where) as session:
            memory, failed = _memory(session, problems.values())
            done, more, interrupted = _run(found, problems, session, make, memory, each_launch)
            failed += more
            stored = results.record(
                shlex.join(["toprung", *sys.argv[1:]]),
                environment(session),
                [e.measurement for rows in done.values() for e in rows if e.measurement],
                failed,
                interrupted,
                **({"bandwidth": memory.describe()} if memory else {}),
                **({"notes": [f"{found.name} promises {found.note}"]} if found.note else {}),
            )
        if why_not:
            console.print(f"rung 0: {why_not}", markup=False, highlight=False)
        if found.note:
            console.print(f"{found.name} promises {found.note}", style="dim", markup=False, highlight=False, soft_wrap=True)
        for line in [] if switches else refusals(climbed, where):
            console.print(f"not on {where.id}: {line}", style="dim", markup=False, highlight=False, soft_wrap=True)
        if json is not None:
            results.write(_named(json, where, places), stored)
        if plot is not None:
            pictures.pictures(stored, _named(plot, where, places))
        failures += failed
        everything |= {f"{where.backend} {size}" if len(places) > 1 else size: rows for size, rows in done.items()}
        if interrupted:
            break
    columns = list(everything.items())
    for where in idle:
        console.print(
            f"not on {where.id}: no rung of {name} runs there: {climbed[0].needs(where)}",
            style="dim",
            markup=False,
            highlight=False,
        )
    for i in range(0, len(columns), COLUMNS) if len(columns) > 1 else ():
        console.print(sweep_table(dict(columns[i : i + COLUMNS])))
    for line in failures:
        console.print(line, style="bold red", markup=False, highlight=False)
    if interrupted:
        console.print("interrupted: what is above is what had been measured", style="yellow")
        raise typer.Exit(INTERRUPTED)
    if failures:
        raise typer.Exit(1)


def _devices(names: str | None, found: Ladder) -> list[Device]:
    """The devices named; by default the best one that runs the ladder and, where it is a GPU, the same GPU through the others."""
    if names is not None:
        return [backends.find(name) for name in names.split(",")]
    best = best_for(found.rungs)
    same = [d for d in backends.devices() if d.kind == "gpu" and d.slug == best.slug and d.backend != best.backend]
    others = {d.backend: d for d in reversed(same)}
    return [best, *others.values()]


def _named(path: Path, where: Device, places: list[Device]) -> Path:
    """The file for one of several devices: the name given for the first, with the backend behind it for the others."""
    return path if where is places[0] else path.with_stem(f"{path.stem}-{where.backend}")


def _memory(session: Session, problems: Iterable[Problem]) -> tuple[Bandwidth | None, list[str]]:
    """What the device's memory gives, where that is what the problems are held against; and what did not work."""
    if not any(p.measured_in == "GB/s" for p in problems):
        return None, []
    try:
        found = bandwidth.measure(session)
    except (BuildError, LaunchError, OutOfDeviceMemory, WrongResult) as error:
        return None, [f"bandwidth: {error}"]
    console.print(str(found), highlight=False)
    return found, []


def _run(
    found: Ladder,
    problems: dict[str, Problem],
    session: Session,
    make: Callable[[], list[Entry]],
    memory: Bandwidth | None,
    each: bool,
) -> tuple[dict[str, list[Entry]], list[str], bool]:
    """Climb for every size with a live table; what was measured before Ctrl-C is kept."""
    done: dict[str, list[Entry]] = {}
    failures: list[str] = []
    limits = Limits(session.device.gflops_per_mhz, memory)
    bounds = RungBounds(session.device)

    def share(problem: Problem) -> Callable[[Entry], float | None] | None:
        return functools.partial(bounds.share, problem=problem) if bounds.figures else None

    for size, problem in problems.items():
        rows = make()
        done[size] = rows
        title = f"{found.name} at {size} on {session.device}"

        def table(rows: list[Entry] = rows, title: str = title, problem: Problem = problem) -> Table:
            return ladder_table(rows, title, limits, console.width, problem.measured_in, each, share(problem))

        progress = Progress(
            TextColumn(size), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True, console=console
        )
        task = progress.add_task(size, total=len(rows) * (1 + SAMPLES))
        try:
            with Live(console=console, refresh_per_second=8, transient=True) as live:
                for entry in climb(problem, rows, session, each=each):
                    if entry.state not in ("building", "checking"):
                        progress.advance(task)
                    live.update(Group(table(), progress))
        except OutOfDeviceMemory as error:
            failures.append(f"{size}: skipped: {error}")
            continue
        except KeyboardInterrupt:
            console.print(table())
            return done, failures, True
        console.print(table())
        failures += [f"{e.who.name} {e.variant}".rstrip() + f" at {size}: {e.failure}" for e in rows if e.failure]
    return done, failures, False
