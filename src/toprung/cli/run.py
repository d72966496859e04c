"""``toprung run``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.text import Text

from toprung import backends
from toprung.backends import cubin as machine
from toprung.cli.common import WIDE, console, end, json_option, parse_sizes, parse_switches, parse_tile, show
from toprung.cli.progress import Progress
from toprung.errors import BadCubin, BadSize, Unsupported
from toprung.kernels.record import Own
from toprung.lab.harness import results
from toprung.lab.harness.climb import best_for, default_sizes, problem_of
from toprung.lab.harness.compare import QUIET, ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.environment import environment
from toprung.lab.harness.single import FILE, HERE, SAMPLES, LoadedRung, Note, both, tile_of
from toprung.lab.harness.stats import paired_ratio
from toprung.lab.rung import ladder, rung
from toprung.report import names
from toprung.report.grid import Column, Grid
from toprung.report.table import STATES
from toprung.report.text import gflops_text, ms_text, scatter_text
from toprung.tune.apart import apart


def run_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUNG]", help="a rung such as kepler/r07; by default what the cubin was made from")
    ] = None,
    cubin: Annotated[Path | None, typer.Option(help="machine code in place of the rung's text")] = None,
    kernel: Annotated[str | None, typer.Option(help="the kernel in it; by default the one called like the routine")] = None,
    size: Annotated[str | None, typer.Option(help="512, or 35x79x19 (M x N x K)")] = None,
    device: Annotated[str | None, typer.Option(help="an id, or a part of a name (see toprung devices)")] = None,
    switch: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a rung's switch; may be repeated")] = None,
    tile: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a tile parameter; may be repeated")] = None,
    beside: Annotated[
        bool, typer.Option("--both", help="the rung compiled here and its machine code from a file, in turns")
    ] = False,
    json: Annotated[Path | None, json_option("store every sample and all circumstances in this file")] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Verify and time one kernel: a rung, or machine code of one's own in its place.

    A cubin is checked before a driver sees it: its architecture, its kernel, the parameters it takes.

    Examples:

      toprung run kepler/r07

      toprung inspect kepler/r07 --cubin mine.cubin; toprung run --cubin mine.cubin

      toprung run kepler/r07 --size 4096 --both
    """
    own, note = None, None
    if cubin is not None:
        note = Note.read(cubin)
        own = Own.read(cubin, kernel or (note.kernel if note else ""))
        known = machine.facts(own.code, own.name)
        if own.kernel:
            machine.check(own.code, own.name, known.arch, own.kernel)
    elif kernel is not None:
        raise BadCubin("--kernel names a kernel of a cubin: give --cubin FILE, too")
    if name is None and note is None:
        what = f"{cubin} has no {cubin.name}.json beside it that says what it was made from: " if cubin else ""
        raise BadCubin(f"{what}name the rung in whose place it stands, such as toprung run kepler/r07")
    which = rung(name or (note.rung if note else ""))
    if note is not None and which.name != note.rung:
        note = None
    where = best_for([which]) if device is None else backends.find(device)
    switches = {**(note.options if note else {}), **parse_switches(switch or [])}
    options = which.options(where, switches)
    chosen = tile_of(which, options, {**(note.tile if note else {}), **parse_tile(tile or [])}, where)
    of = ladder(which.ladder)
    sizes = parse_sizes(size) if size is not None else [default_sizes(of, where)[-1]]
    if len(sizes) != 1:
        raise BadSize(f"toprung run takes one size, not {len(sizes)}")
    problem = problem_of(of, sizes[0])
    if own is not None and where.backend != "cuda":
        raise BadCubin(f"{own.name} is machine code for CUDA, and {where} is reached through {where.backend}: use a CUDA device")
    with backends.opened(where) as session:
        forms = both(which, chosen, options, session, own) if beside else [
            LoadedRung(FILE if own else HERE, which, options, chosen, own)
        ]  # fmt: skip
        plan = ComparisonPlan(samples={"warm": SAMPLES}, tolerates=())
        rows = plan.rows(forms)
        interrupted = False
        try:
            with Progress(len(forms) * (4 + SAMPLES)) as progress, apart(forms, where):
                progress.step(f"{problem}: making the operands")
                for row in compare(PlacedProblem(problem, session), rows, plan):
                    progress.step(f"{which} {row.variant} {row.state}", float(row.state != "sampling"))
        except KeyboardInterrupt:
            interrupted = True
        if reasons := [row.note for row in rows if row.state in QUIET]:
            raise Unsupported(reasons[0])
        wrong = [f"{which} {row.variant}: {row.note}" for row in rows if row.failed]
        measured = [row.measurement for row in rows if row.measurement]
        content = results.record(
            results.command(), environment(session), measured, wrong, interrupted, kind="run",
            loads=[{"label": f.label, "compile_seconds": f.compile_seconds, "load_seconds": f.load_seconds} for f in forms],
        )  # fmt: skip
    show(_grid(rows, f"{which} {chosen} on {problem} on {where}"), wide)
    if len(measured) == 2:
        ratio = paired_ratio(measured[0].seconds, measured[1].seconds)
        console.print(f"speed {FILE} / {HERE}: {ratio.value:.4f}, 95 % interval {ratio.low:.4f} to {ratio.high:.4f}")
    if json is not None:
        results.write(json, content)
    end(wrong, interrupted)


def _grid(rows: Sequence[Row], title: str) -> Grid:
    unit = next((row.measurement.measured_in for row in rows if row.measurement), "GFLOP/s")
    grid = Grid(title, [
        Column("code", right=False), Column(names.MS), Column(unit), Column(names.SPREAD), Column(names.REGISTERS, 1),
        Column("local bytes", 3), Column("load ms", 2), Column(names.GRADE, 4),
    ])  # fmt: skip
    for row in rows:
        m, form = row.measurement, cast(LoadedRung, row.who)
        used = form.resources
        cells: dict[str, str | Text] = {
            "code": form.label, "load ms": ms_text(statistics.median(form.load_seconds)) if form.load_seconds else "–",
            names.REGISTERS: str((used and used.registers) or "–"),
            "local bytes": str(used.local_bytes) if used and used.local_bytes is not None else "–",
            names.GRADE: f"{row.verdict.grade:.2g}" if row.verdict else "",
        }  # fmt: skip
        if m is None:
            cells[unit] = Text(STATES.get(row.state, ""), "bold red" if row.failed else "dim")
        else:
            cells |= {names.MS: ms_text(m.median), unit: gflops_text(m.figure), names.SPREAD: scatter_text(m.seconds)}
        grid.add(cells)
    return grid


COMMANDS = {"run": run_command}
