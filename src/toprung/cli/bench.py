"""``toprung bench`` and ``toprung accuracy``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from toprung import backends
from toprung.backends.base import Session
from toprung.cli.common import console, json_option, parse_sizes
from toprung.device import Device
from toprung.errors import BadSize, OutOfDeviceMemory, ToprungError, UnknownName
from toprung.lab.competitor import Competitor
from toprung.lab.harness import results
from toprung.lab.harness.accuracy import DEPTHS, Graded, sweep
from toprung.lab.harness.bench import MODES, Row, bench, competitors, default_competitors, ratios
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.power import Meter
from toprung.lab.harness.suites import CPU_FLOPS, SUITES, TIGHT, fitting, suite
from toprung.lab.routines.gemm import from_size
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import TRANSPOSES, Gemm
from toprung.paths import publish
from toprung.report import bench_plot
from toprung.report import plot as pictures
from toprung.report.bench_table import accuracy_table, bench_table, to_csv

INTERRUPTED = 130
WIDE = 110
DEFAULT_SIZES = {"gpu": "1024,2048,4096", "cpu": "256,512", "other": "256,512"}

_PEERS = typer.Option(help="who takes part, with commas: peers (cublas, numpy, …), rungs (kepler/r07), ladders (kepler)")
_DEVICE = typer.Option(help="an id, or a part of a name (see toprung devices)")
_JSON = json_option("store every sample and all circumstances in this file")
_PLOT = typer.Option(help="draw the result: a .png or .svg file")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("bench")(bench_command)
    app.command("accuracy")(accuracy_command)


def bench_command(
    sizes: Annotated[str | None, typer.Option(help="512, 35x79x19 (M x N x K), 256:1024:256, or several with commas")] = None,
    suite_name: Annotated[
        str | None, typer.Option("--suite", metavar="NAME|FILE.json", help=f"{', '.join(SUITES)}, or a JSON list of products")
    ] = None,
    trans: Annotated[str | None, typer.Option(help="NN, NT, TN, TT, with commas: the first letter is A's (row-major)")] = None,
    peers: Annotated[str | None, _PEERS] = None,
    device: Annotated[str | None, _DEVICE] = None,
    cold: Annotated[bool, typer.Option("--cold", help="also with operands that are in no cache")] = False,
    sustained: Annotated[
        bool, typer.Option("--sustained", help="also after 2 s of load, 1 s a sample, with energy; some 10 s each")
    ] = False,
    held: Annotated[
        bool, typer.Option("--held", help="also with the queue held until calls are in it: the device's time without the host's")
    ] = False,
    json: Annotated[Path | None, _JSON] = None,
    csv: Annotated[Path | None, typer.Option(help="a line a measurement, for spreadsheets")] = None,
    plot: Annotated[Path | None, _PLOT] = None,
) -> None:
    """Compare competitors in turns on the same data: speed with an interval, error, energy.

    The first competitor is what the others are compared to. A ratio's interval is the 95 % bootstrap interval of its median.

    Examples:

      toprung bench

      toprung bench --sizes 1024,4096 --trans NN,TN --peers cublas,cublas_tf32,kepler/r10 --cold

      toprung bench --suite transformer --sustained --json out.json
    """
    where = backends.find(device)
    problems = _problems(where, sizes, suite_name, _transposes(trans))
    rivals, notes = _rivals(peers, where)
    if plot is not None:
        pictures.check(plot)
    modes = [m for m, wanted in zip(MODES, (True, cold, sustained, held), strict=True) if wanted]
    if sustained and (reason := Meter(where).absent):
        notes.append(reason)
    with backends.opened(where) as session:
        if held and not _held(session):
            notes.append(f"queues of {where} cannot be held: held is as warm there")
        measured, failures, more, interrupted = _run(problems, rivals, session, modes)
        entries = [{**m.describe(), "ratio": vars(r) if r else None} for m, r in zip(measured, ratios(measured), strict=True)]
        stored = results.record(
            _command(), environment(session), entries, failures, interrupted, kind="bench", notes=[*notes, *more]
        )
    _say([*notes, *more], failures)
    _store(json, stored)
    if csv is not None:
        publish(csv, to_csv(measured).encode())
    if plot is not None:
        bench_plot.bench(stored, plot)
    _end(interrupted, bool(failures) or not measured)


def accuracy_command(
    peers: Annotated[str | None, _PEERS] = None,
    sizes: Annotated[str | None, typer.Option(help="values of K: 32,512,8192 or 1024:4096:1024")] = None,
    inputs: Annotated[str | None, typer.Option(help=f"with commas: {', '.join(DISTRIBUTIONS)}; default all")] = None,
    device: Annotated[str | None, _DEVICE] = None,
    json: Annotated[Path | None, _JSON] = None,
    plot: Annotated[Path | None, _PLOT] = None,
) -> None:
    """Grade every competitor on every input distribution over K. Red: wrong; yellow: past its own, weaker promise.

    Exit code 1 only if something that promises plain fp32 is wrong: what narrower paths lose is what this is there to show.

    Example: toprung accuracy --peers numpy,kepler/r10 --sizes 64,1024 --plot accuracy.svg
    """
    where = backends.find(device)
    depths = [_depth(s) for s in parse_sizes(sizes)] if sizes is not None else list(DEPTHS)
    names = inputs.split(",") if inputs is not None else list(DISTRIBUTIONS)
    for name in names:
        if name not in DISTRIBUTIONS:
            raise UnknownName("distribution", name, DISTRIBUTIONS)
    rivals, notes = _rivals(peers, where)
    if plot is not None:
        pictures.check(plot)
    graded: list[Graded] = []
    failures: list[str] = []
    interrupted = False
    with backends.opened(where) as session:
        try:
            with Live(console=console, refresh_per_second=4, transient=True) as live:
                for depth in depths:
                    try:
                        for one in sweep(rivals, session, [depth], names):
                            graded.append(one)
                            live.update(accuracy_table(graded, str(where)))
                    except (OutOfDeviceMemory, MemoryError) as error:
                        failures.append(f"K = {depth}: skipped: {error}")
        except KeyboardInterrupt:
            interrupted = True
        wrong = [f"{_who(g)} on {g.distribution} at K = {g.problem['K']}: {_why(g)}" for g in graded if g.broken]
        entries = [g.describe() for g in graded]
        stored = results.record(
            _command(), environment(session), [], [*failures, *wrong], interrupted, kind="accuracy", notes=notes, graded=entries
        )
    console.print(accuracy_table(graded, str(where)))
    _say(notes, [*failures, *wrong])
    _store(json, stored)
    if plot is not None:
        bench_plot.accuracy(stored, plot)
    _end(interrupted, bool(wrong) or not graded)


def _held(session: Session) -> bool:
    """Whether its queue can be held."""
    if release := session.hold():
        release()
    return bool(release)


def _run(
    problems: Sequence[Gemm], rivals: Sequence[Competitor], session: Session, modes: Sequence[str]
) -> tuple[list[Measurement], list[str], list[str], bool]:
    """Compare on every problem with a live table: measurements, failures, notes, and whether Ctrl-C ended it."""
    measured: list[Measurement] = []
    failures: list[str] = []
    notes: dict[str, None] = {}
    for problem in problems:
        rows: list[Row] = []
        title = f"{problem} on {session.device}"

        def table(rows: Iterable[Row], title: str = title) -> Any:
            return bench_table(list(rows), title, session.device.kind, console.width >= WIDE)

        try:
            with Live(console=console, refresh_per_second=8, transient=True) as live:
                for rows in bench(problem, rivals, session, modes):
                    live.update(table(rows))
        except (OutOfDeviceMemory, MemoryError) as error:
            notes[f"{problem}: skipped: {error}"] = None
            measured += _measured(rows)  # what was done before it, in another mode
            continue
        except KeyboardInterrupt:
            console.print(table(rows))
            return [*measured, *_measured(rows)], failures, list(notes), True
        console.print(table(rows))
        measured += _measured(rows)
        failures += dict.fromkeys(f"{r.who.name} at {problem}: {r.note}" for r in rows if r.failed)
        notes |= dict.fromkeys(r.note for r in rows if r.state == "unsupported")
    return measured, failures, list(notes), False


def _measured(rows: Sequence[Row]) -> list[Measurement]:
    return [r.measurement for r in rows if r.measurement]


def _problems(device: Device, sizes: str | None, suite_name: str | None, trans: Sequence[str]) -> list[Gemm]:
    if sizes is not None and suite_name is not None:
        raise BadSize("--sizes and --suite exclude each other")
    if suite_name is None:
        products = [from_size(s) for s in parse_sizes(sizes or DEFAULT_SIZES[device.kind])]
        return [replace(p, trans=t, **TIGHT) for p in products for t in trans or ("NN",)]
    found, left_out = fitting(suite(suite_name, trans), device.kind)
    if left_out:
        count = f"{len(left_out)} of {len(found) + len(left_out)}"
        console.print(f"{count} products have more than {CPU_FLOPS:.2g} operations and are left out on this device", style="dim")
    if not found:
        raise BadSize(f"every product of {suite_name} is too large for {device}; choose --sizes")
    return found


def _transposes(text: str | None) -> list[str]:
    chosen = text.upper().split(",") if text is not None else []
    for word in chosen:
        if word not in TRANSPOSES:
            raise UnknownName("transpose", word, TRANSPOSES)
    return chosen


def _rivals(names: str | None, device: Device) -> tuple[list[Competitor], list[str]]:
    """Who takes part, and why those do not who were asked for."""
    wanted = competitors(names.split(",")) if names is not None else default_competitors(device)
    notes = [f"{c.name}: {reason}" for c in wanted if (reason := c.absent(device))]
    present = [c for c in wanted if not c.absent(device)]
    if not present:
        raise ToprungError("nobody can take part. " + "; ".join(notes))
    notes += [f"{c.name}: {c.promise.note}" for c in present if c.promise.note]
    return present, notes


def _depth(size: tuple[int, ...]) -> int:
    if len(size) != 1:
        raise BadSize(f"accuracy takes values of K, not {'x'.join(map(str, size))}")
    return size[0]


def _who(graded: Graded) -> str:
    return results.competitor_name(graded.competitor)


def _why(graded: Graded) -> str:
    return graded.verdict.problems[0] if graded.verdict and graded.verdict.problems else graded.note


def _command() -> str:
    return shlex.join(["toprung", *sys.argv[1:]])


def _say(notes: Sequence[str], failures: Sequence[str]) -> None:
    for line in notes:
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
    for line in failures:
        console.print(line, style="bold red", markup=False, highlight=False, soft_wrap=True)


def _store(path: Path | None, content: dict[str, Any]) -> None:
    if path is not None:
        results.write(path, content)


def _end(interrupted: bool, failed: bool) -> None:
    if interrupted:
        console.print("interrupted: what is above is what had been measured", style="yellow")
        raise typer.Exit(INTERRUPTED)
    if failed:
        raise typer.Exit(1)
