"""``toprung ladder``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from toprung import backends, results
from toprung.backends.base import Session
from toprung.cli.common import console, parse_numbers, parse_sizes, parse_switches, size_name, with_settings
from toprung.climb import Entry, climb, default_sizes, entries, find_vendor, problem_of, refusals
from toprung.environment import environment
from toprung.errors import OutOfDeviceMemory
from toprung.measure import SAMPLES
from toprung.problem import Problem
from toprung.report import plot as pictures
from toprung.report.table import ladder_table, sweep_table
from toprung.rung import Ladder, ladder, select

INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ladder")(ladder_command)


def ladder_command(
    name: Annotated[str, typer.Argument(metavar="LADDER", help="kepler, …")],
    device: Annotated[str | None, typer.Option(help="an id, or a part of a name (see toprung devices)")] = None,
    sizes: Annotated[str | None, typer.Option(help="512, 35x79x19 (M x N x K), 256:1024:256, or several with commas")] = None,
    rungs: Annotated[str | None, typer.Option(help="1-10, or 2,7; 0 is the vendor's library")] = None,
    switch: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a rung's switch; may be repeated")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the problem: trans=T, beta=1, lda=…")] = None,
    json: Annotated[Path | None, typer.Option(help="store every sample and all circumstances in this file")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the result: a .png or .svg file")] = None,
) -> None:
    """Run a ladder's kernels on a device: each verified, then timed in turns beside the vendor's library.

    Examples:

      toprung ladder kepler

      toprung ladder kepler --sizes 35x79x19,512 --rungs 1,6-10 --json out.json

      toprung ladder kepler --rungs 8 --switch INDEX32=1

      toprung ladder matvec --sizes 100000x1100 --set trans=T
    """
    found = ladder(name)
    where = backends.find(device)
    wanted = parse_sizes(sizes) if sizes is not None else list(default_sizes(found, where))
    problems = {size_name(size): problem_of(found, size) for size in wanted}
    if setting:
        changed = [with_settings(p, setting) for p in problems.values()]
        problems = {str(p): p for p in changed}
    vendor, why_not = find_vendor(where, found)
    numbers = [r.number for r in found.rungs]
    chosen = numbers if rungs is None else parse_numbers(rungs, [0, *numbers], f"rung of {name}")
    climbed = select(found.rungs, chosen)
    if rungs is not None and 0 not in chosen and not climbed:
        vendor = None
    switches = parse_switches(switch or [])
    entries(climbed, where, vendor, switches)  # refuses bad switches before anything starts
    if plot is not None:
        pictures.check(plot)

    with backends.opened(where) as session:
        done, failures, interrupted = _run(found, problems, session, lambda: entries(climbed, where, vendor, switches))
        stored = results.record(
            shlex.join(["toprung", *sys.argv[1:]]),
            environment(session),
            [e.measurement for rows in done.values() for e in rows if e.measurement],
            failures,
            interrupted,
        )
    if len(done) > 1:
        console.print(sweep_table(done))
    if vendor is None and why_not:
        console.print(f"rung 0: {why_not}", markup=False, highlight=False)
    if not switches:
        for line in refusals(climbed, where):
            console.print(f"not here: {line}", style="dim", markup=False, highlight=False, soft_wrap=True)
    for line in failures:
        console.print(line, style="bold red", markup=False, highlight=False)
    if json is not None:
        results.write(json, stored)
    if plot is not None:
        pictures.ladder(stored, plot)
    if interrupted:
        console.print("interrupted: what is above is what had been measured", style="yellow")
        raise typer.Exit(INTERRUPTED)
    if failures:
        raise typer.Exit(1)


def _run(
    found: Ladder, problems: dict[str, Problem], session: Session, make: Callable[[], list[Entry]]
) -> tuple[dict[str, list[Entry]], list[str], bool]:
    """Climb for every size with a live table; what was measured before Ctrl-C is kept."""
    done: dict[str, list[Entry]] = {}
    failures: list[str] = []
    for size, problem in problems.items():
        rows = make()
        done[size] = rows
        title = f"{found.name} at {size} on {session.device}"

        def table(rows: list[Entry] = rows, title: str = title, problem: Problem = problem) -> Table:
            return ladder_table(rows, title, session.device.peak_gflops, console.width, problem.measured_in)

        progress = Progress(
            TextColumn(size), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True, console=console
        )
        task = progress.add_task(size, total=len(rows) * (1 + SAMPLES))
        try:
            with Live(console=console, refresh_per_second=8, transient=True) as live:
                for entry in climb(problem, rows, session):
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
