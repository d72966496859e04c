"""``toprung bench`` and ``toprung accuracy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from toprung import backends
from toprung.backends.base import Session
from toprung.cli.common import WIDE, console, end, errors_console, json_option, parse_seconds, parse_sizes, result_file, say, show
from toprung.cli.progress import Comparisons, Progress, duration, total
from toprung.device import Device
from toprung.errors import BadSize, OutOfDeviceMemory, ToprungError, UnknownName
from toprung.lab.competitor import Competitor
from toprung.lab.harness import results
from toprung.lab.harness.accuracy import DEPTHS, Graded, sweep
from toprung.lab.harness.baseline import watched
from toprung.lab.harness.bench import competitors, default_competitors, ratios
from toprung.lab.harness.compare import MODES, ComparisonPlan, Row
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.power import Meter
from toprung.lab.harness.suites import CPU_FLOPS, SUITES, TIGHT, fitting, suite
from toprung.lab.routines.gemm import from_size
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import TRANSPOSES, Gemm
from toprung.oracle.problem import Problem
from toprung.paths import deliver, is_stream
from toprung.report import bench_plot
from toprung.report import plot as pictures
from toprung.report.bench_table import accuracy_table, bench_table, to_csv
from toprung.report.grid import Grid

FIXED_DEPTH = 1024
"""Part of a step of ``toprung accuracy`` that does not depend on K, as the K that takes as long: operands, and checking C."""
WORTH_SAYING = 5.0
"""Seconds from which on a run says beforehand how long it takes."""
DEFAULT_SIZES = {"gpu": "1024,2048,4096", "cpu": "256,512", "other": "256,512"}

_PEERS = typer.Option(help="who takes part, with commas: matmul, toprung, cublas, numpy, …, a rung (kepler/r07), a ladder (kepler)")
_DEVICE = typer.Option(help="an id, or a part of a name (see toprung devices)")
_JSON = json_option("store every sample and all circumstances in this file")
_PLOT = typer.Option(help="draw the result: a .png or .svg file", callback=result_file)


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
    csv: Annotated[Path | None, typer.Option(help="a line a measurement, for spreadsheets", callback=result_file)] = None,
    plot: Annotated[Path | None, _PLOT] = None,
    budget: Annotated[str | None, typer.Option(help="end after about 60s, 5m, 1h; what was measured by then is kept")] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Compare toprung.matmul, or other competitors, in turns on the same data: speed with an interval, error, energy.

    The first competitor is what the others are compared to: toprung.matmul as a user gets it, unless --peers says otherwise. Rungs
    take part on request. A ratio's interval is the 95 % bootstrap interval of its median.

    Examples:

      toprung bench

      toprung bench --sizes 1024,4096 --trans NN,TN --peers cublas,cublas_tf32,kepler/r10 --cold

      toprung bench --peers matmul,numpy,kepler/r10

      toprung bench --suite transformer --sustained --budget 10m --json out.json
    """
    where = backends.find(device)
    letters = trans.upper().split(",") if trans is not None else []
    for word in letters:
        if word not in TRANSPOSES:
            raise UnknownName("transpose", word, TRANSPOSES)
    problems = _problems(where, sizes, suite_name, letters)
    competing, notes = _competing(peers, where)
    if plot is not None:
        pictures.check(plot)
    modes = [m for m, wanted in zip(MODES, (True, cold, sustained, held), strict=True) if wanted]
    if sustained and (reason := Meter(where).absent):
        notes.append(reason)
    seconds = parse_seconds(budget) if budget is not None else None
    with backends.opened(where) as session:
        if held:
            if release := session.hold():
                release()
            else:
                notes.append(f"queues of {where} cannot be held: there, held measures the same as warm")
        run = _Run(problems, competing, session, ComparisonPlan(tuple(modes)), wide, seconds)

        def stored(interrupted: bool) -> dict[str, Any]:
            found = zip(run.measured, ratios(run.measured), strict=True)
            entries = [{**m.describe(), "ratio": vars(r) if r else None} for m, r in found]
            more = {"kind": "bench", "notes": [*notes, *run.notes, *run.doubts]}
            return results.record(results.command(), environment(session), entries, run.failures, interrupted, **more)

        so_far = None if json is None or is_stream(json) else json  # a pipe gets one record, at the end
        interrupted = run.all(lambda unfinished: _store(so_far, stored(unfinished)))
        content = stored(interrupted or run.cut)
    for line in [*notes, *run.notes]:
        say(line, "dim")
    _store(json, content)
    if csv is not None:
        deliver(csv, to_csv(run.measured).encode())
    if plot is not None:
        bench_plot.bench(content, plot)
    end(run.failures, interrupted, bool(run.failures) or not run.measured)


def accuracy_command(
    peers: Annotated[str | None, _PEERS] = None,
    sizes: Annotated[str | None, typer.Option(help="values of K: 32,512,8192 or 1024:4096:1024")] = None,
    inputs: Annotated[str | None, typer.Option(help=f"with commas: {', '.join(DISTRIBUTIONS)}; default all")] = None,
    device: Annotated[str | None, _DEVICE] = None,
    json: Annotated[Path | None, _JSON] = None,
    plot: Annotated[Path | None, _PLOT] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Grade every competitor on every input distribution over K. Red: wrong; yellow: past its own, weaker promise.

    Exit code 1 only if something that promises plain fp32 is wrong: what narrower paths lose is what this is there to show.

    Example: toprung accuracy --peers numpy,kepler/r10 --sizes 64,1024 --plot accuracy.svg
    """
    where = backends.find(device)
    given = parse_sizes(sizes) if sizes is not None else [(depth,) for depth in DEPTHS]
    for size in given:
        if len(size) != 1:
            raise BadSize(f"accuracy takes values of K, not {'x'.join(map(str, size))}")
    depths = [depth for depth, *_ in given]
    names = inputs.split(",") if inputs is not None else list(DISTRIBUTIONS)
    for name in names:
        if name not in DISTRIBUTIONS:
            raise UnknownName("distribution", name, DISTRIBUTIONS)
    competing, notes = _competing(peers, where)
    if plot is not None:
        pictures.check(plot)
    graded: list[Graded] = []
    failures: list[str] = []
    interrupted = False
    with backends.opened(where) as session:
        try:
            with Progress(sum(depth + FIXED_DEPTH for depth in depths) * len(names) * len(competing)) as progress:
                progress.table = lambda: accuracy_table(graded, str(where)).fitted(console.width)[0]
                for depth in depths:
                    try:
                        for one in sweep(competing, session, [depth], names):
                            graded.append(one)
                            progress.step(f"K = {depth}: {_who(one)} on {one.distribution}", depth + FIXED_DEPTH)
                    except (OutOfDeviceMemory, MemoryError) as error:
                        failures.append(f"K = {depth}: skipped: {error}")
        except KeyboardInterrupt:
            interrupted = True
        wrong = [
            f"{_who(g)} on {g.distribution} at K = {g.problem['K']}: "
            + (g.verdict.problems[0] if g.verdict and g.verdict.problems else g.note)
            for g in graded if g.broken
        ]  # fmt: skip
        entries = [g.describe() for g in graded]
        stored = results.record(
            results.command(), environment(session), [], [*failures, *wrong], interrupted, kind="accuracy", notes=notes,
            graded=entries,
        )  # fmt: skip
    show(accuracy_table(graded, str(where)), wide)
    if others := list(dict.fromkeys(g.problem["K"] for g in graded))[:-1]:
        say(f"graded at K = {', '.join(map(str, others))}, too: --plot draws the grade over K, --json stores it", "dim")
    for line in notes:
        say(line, "dim")
    _store(json, stored)
    if plot is not None:
        bench_plot.accuracy(stored, plot)
    end([*failures, *wrong], interrupted, bool(wrong) or not graded)


class _Run(Comparisons):
    """Products that are compared one after the other.

    Attributes
    ----------
    measured : measurements so far
    notes : lines to print at the end
    doubts : warnings of baselines that scatter, which are printed already
    """

    def __init__(
        self, problems: Sequence[Gemm], competing: Sequence[Competitor], session: Session, plan: ComparisonPlan, wide: bool,
        budget: float | None,
    ) -> None:  # fmt: skip
        super().__init__([(str(p), p) for p in problems], competing, session, plan, wide, budget)
        self.measured: list[Measurement] = []
        self.notes: dict[str, None] = {}
        self.doubts: list[str] = []

    def all(self, store: Callable[[bool], None] = lambda unfinished: None) -> bool:
        seconds = sum(total(self.expected).values())
        if seconds > WORTH_SAYING:
            many = f"{len(self.problems)} products, {len(self.competing)} competitors" if len(self.problems) > 1 else "this"
            said = f"{many}: about {duration(seconds)}; Ctrl-C or --budget ends it earlier and keeps what was measured"
            say(said, "dim", to=errors_console)
        interrupted = super().all(store)
        if self.unbegun:
            skipped = f"{len(self.unbegun)} of {len(self.problems)} products not begun"
            self.notes[f"the budget of {duration(self.budget or 0)} is over: {skipped}"] = None
        return interrupted

    def table(self, rows: list[Row], name: str, problem: Problem) -> Grid:
        return bench_table(rows, f"{name} on {self.session.device}", self.session.device.kind)

    def skip(self, line: str) -> None:
        self.notes[line] = None

    def finish(self, rows: list[Row], name: str) -> None:
        self.measured += [r.measurement for r in rows if r.measurement]
        first = next(((r.who.name, r.measurement) for r in rows if r.measurement), None)
        for line in watched(self.session.device, [first] if first else []):
            self.doubts.append(line)
            say(line, "yellow")
        self.failures += dict.fromkeys(f"{r.who.name} at {name}: {r.note}" for r in rows if r.failed)
        self.notes |= dict.fromkeys(r.note for r in rows if r.state == "unsupported")


def _problems(device: Device, sizes: str | None, suite_name: str | None, trans: Sequence[str]) -> list[Gemm]:
    if sizes is not None and suite_name is not None:
        raise BadSize("--sizes and --suite exclude each other")
    if suite_name is None:
        products = [from_size(s) for s in parse_sizes(sizes or DEFAULT_SIZES[device.kind])]
        return [replace(p, trans=t, **TIGHT) for p in products for t in trans or ("NN",)]
    found, left_out = fitting(suite(suite_name, trans), device.kind)
    if left_out:
        count = f"{len(left_out)} of {len(found) + len(left_out)}"
        say(f"{count} products have more than {CPU_FLOPS:,} operations and are left out on this device", "dim")
    if not found:
        raise BadSize(f"every product of {suite_name} is too large for {device}; choose --sizes")
    return found


def _competing(names: str | None, device: Device) -> tuple[list[Competitor], list[str]]:
    """Return who takes part, and why those do not who were asked for."""
    wanted = competitors(names.split(",")) if names is not None else default_competitors(device)
    notes = [f"{c.name}: {reason}" for c in wanted if (reason := c.absent(device))]
    present = [c for c in wanted if not c.absent(device)]
    if not present:
        raise ToprungError("nobody can take part. " + "; ".join(notes))
    notes += [f"{c.name}: {c.promise.note}" for c in present if c.promise.note]
    return present, notes


def _who(graded: Graded) -> str:
    return results.competitor_name(graded.competitor)


def _store(path: Path | None, content: dict[str, Any]) -> None:
    if path is not None:
        results.write(path, content)


COMMANDS = {"bench": bench_command, "accuracy": accuracy_command}
