"""``toprung bound``."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from toprung import backends
from toprung.cli.common import WIDE, console, parse_tile, result_file, say, show, table_width
from toprung.errors import BadSize, UnknownName, Unsupported
from toprung.lab.bounds.arch import ARCHITECTURES, Architecture, architecture
from toprung.lab.bounds.figures import Unknown
from toprung.lab.bounds.paper import WIDTHS, Analysis, Blocking, analyse, ffma_share
from toprung.lab.explain import device_named, figures_of
from toprung.report import bound_plot
from toprung.report.grid import Column, Grid

SQUARE = {"B_R": 6, "T_B": 256, "L": 16}
TILE = ("BM", "BN", "BK", "TM", "TN")
SWEEP = range(1, 17)
NUMBERS = 60
"""Cells of a line of numbers below its formula."""


def bound_command(
    arch: Annotated[
        str | None, typer.Option(help="gt200, fermi, kepler, sm_75 … sm_100, or here: the best device [default: fermi]")
    ] = None,
    on: Annotated[
        str | None, typer.Option("--device", help="a device by a part of its name, here or on record: nvidia-h200")
    ] = None,
    br: Annotated[int | None, typer.Option("--BR", help="register blocking factor B_R of a square tile [default: 6]")] = None,
    tb: Annotated[int | None, typer.Option("--TB", help="threads of a square block, T_B [default: 256]")] = None,
    stride: Annotated[int | None, typer.Option("--L", help="steps of K fetched at a time [default: 16]")] = None,
    tile: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for each of BM BN BK TM TN, in place of B_R, T_B, L")] = None,
    width: Annotated[int, typer.Option(help="bits of a load from shared memory: 32, 64 or 128")] = 64,
    blocks: Annotated[int | None, typer.Option(help="blocks a multiprocessor [default: what fits]")] = None,
    registers: Annotated[int | None, typer.Option(help="registers of a thread [default: what equation 7 asks for]")] = None,
    index: Annotated[int, typer.Option(help="registers for addresses and the loop, R_index")] = 7,
    latency: Annotated[float | None, typer.Option(help="clocks of a multiply-add, for condition 1")] = None,
    mix: Annotated[float | None, typer.Option(help="part of the issue rate that FFMA beside LDS reach, for equation 9")] = None,
    sweep: Annotated[bool, typer.Option(help="FFMA share and potential over the register blocking factor")] = False,
    plot: Annotated[Path | None, typer.Option(help="draw the sweep: a .png or .svg file", callback=result_file)] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Show the upper bound of Lai and Seznec's paper: inputs, conditions with their numbers, the resulting peak and its limiter.

    Examples:

      toprung bound

      toprung bound --arch kepler --BR 6

      toprung bound --arch sm_90 --tile BM=128 --tile BN=256 --tile BK=16 --tile TM=8 --tile TN=16 --width 128

      toprung bound --sweep --plot figure1.svg
    """
    if on is not None and arch is not None:
        raise BadSize("give --device or --arch, not both")
    of, clocks = _architecture(arch or "fermi", on)
    latency = latency if latency is not None else clocks
    changes = parse_tile(tile or [])
    if changes and (br, tb, stride) != (None, None, None):
        raise BadSize("--tile gives the whole tile: leave out --BR, --TB and --L")
    if mix is not None and not 0 < mix <= 1:
        raise BadSize(f"--mix is a part of the issue rate, above 0 and at most 1, not {mix}")
    if latency is not None and not 0 < latency < 1e6:
        raise BadSize(f"--latency is a number of clocks, not {latency}")
    for option, value in (("BR", br), ("TB", tb), ("L", stride)):
        if value is not None and value < 1:
            raise BadSize(f"--{option} is at least 1, not {value}")
    square = (
        br if br is not None else SQUARE["B_R"],
        tb if tb is not None else SQUARE["T_B"],
        stride if stride is not None else SQUARE["L"],
    )
    plan = _plan(changes, width, index) if changes else Blocking.square(*square, width=width, index=index)
    plan = replace(plan, blocks=blocks, registers=registers)
    if plot is not None:
        bound_plot.check(plot)
    if sweep or plot is not None:
        if changes:
            raise BadSize("a sweep is over the register blocking factor of square tiles: leave out --tile")
        plans = [Blocking.square(b, square[1], square[2], index=index) for b in SWEEP]
        show(sweep_grid(of, plans, latency, mix), wide)
        if plot is not None:
            bound_plot.sweep(of, plans, plot)
        return
    analysis = analyse(of, plan, latency, throughput=mix)
    known, sources = inputs(of)
    show(known, wide)
    for line in sources:
        say(line, "dim")
    console.print()
    beside = conditions(analysis)
    fits = (edge := table_width(wide)) is None or beside.fitted(None)[2] <= edge
    show(beside if fits else conditions(analysis, stacked=True), wide)
    console.print()
    say(verdict(analysis))


def _architecture(name: str, on: str | None) -> tuple[Architecture, float | None]:
    """Return an architecture, or that of a device with its figures, and the clocks of a multiply-add where they were measured."""
    if on is None and name != "here":
        return architecture(name), None
    device = device_named(on, Path("results")) if on is not None else backends.find()
    if not device.arch:
        raise Unsupported(f"the model is of NVIDIA's GPUs, and {device} is none: give --arch one of {', '.join(ARCHITECTURES)}")
    figures = figures_of(device)
    memory = figures.dram_read_bytes_per_s
    of = replace(
        architecture(device.arch), title=device.short_name, sms=device.compute_units, clock_mhz=figures.clock_mhz,
        dram_bytes_per_s=memory, l2_bytes=figures.l2_bytes,
    )  # fmt: skip
    said = {"sms": "the device", "clock_mhz": figures.source_of("clock_mhz"), "l2_bytes": figures.source_of("l2_bytes")}
    return replace(
        of, sources={**of.sources, **said, "dram_bytes_per_s": figures.source_of("dram_read_bytes_per_s")}
    ), figures.ffma_latency_clocks


def _plan(changes: dict[str, int], width: int, index: int) -> Blocking:
    for name in changes:
        if name not in TILE:
            raise UnknownName("tile parameter of the model", name, TILE)
    if lacking := [name for name in TILE if name not in changes]:
        raise BadSize(f"a tile has {', '.join(TILE)}: give {' '.join(f'--tile {n}=…' for n in lacking)}, too")
    return Blocking(changes["TM"], changes["TN"], changes["BM"], changes["BN"], changes["BK"], width=width, index=index)


def inputs(of: Architecture) -> tuple[Grid, list[str]]:
    """Return what the model knows of an architecture, each figure with the number of its source, and the sources."""
    grid = Grid(of.title, [Column("figure", right=False), Column("value"), Column("source")])
    numbers: dict[str, int] = {}
    for name, value, source in of.table():
        number = numbers.setdefault(source, len(numbers) + 1) if source else "unknown"
        grid.add({"figure": name, "value": value, "source": str(number)})
    return grid, [f"{number}: {source}" for source, number in numbers.items()]


def conditions(analysis: Analysis, stacked: bool = False) -> Grid:
    """Return the paper's twelve conditions with their numbers: beside each formula, or below it if ``stacked``."""
    p = analysis.plan
    title = f"{p.BM}×{p.BN}×{p.BK} {p.TM}×{p.TN}, {p.threads} threads, LDS of {p.width} bits"
    grid = Grid(title, [
        Column("no."), Column("condition", right=False), *[Column("with numbers", right=False)] * (not stacked),
        Column("result", right=False),
    ])  # fmt: skip
    for c in analysis.conditions:
        numbers = c.numbers
        if isinstance(c.value, Unknown):
            result, numbers = "unknown", f"{numbers}; {c.value}"
        elif c.holds is None:
            result = f"{c.value:,.4g}" if c.value < 1000 else f"{c.value:,.0f}"
        else:
            result = "holds" if c.holds else "refused"
        style = "bold red" if c.holds is False else ""
        grid.add({"no.": str(c.number), "condition": c.rule, "with numbers": numbers, "result": Text(result, style)})
        if stacked:
            for line in textwrap.wrap(numbers, NUMBERS):
                grid.add({"condition": Text(f"  {line}", "dim")})
    return grid


def verdict(analysis: Analysis) -> str:
    """Return the potential and what sets it, in one line."""
    most, peak = analysis.potential, analysis.of.peak_gflops
    if isinstance(most, Unknown):
        return f"P_potential is {most}"
    share = "" if isinstance(peak, Unknown) else f", {100 * most / peak:.1f} % of {peak:,.0f}"
    refused = [c.number for c in analysis.conditions if c.holds is False]
    if refused:
        return (
            f"this plan cannot run: condition{'s' * (len(refused) > 1)} {' and '.join(map(str, refused))} "
            f"refuse{'s' * (len(refused) == 1)} it (it would be {most:,.0f} GFLOP/s{share})"
        )
    return f"P_potential = {most:,.0f} GFLOP/s{share}; limited by {analysis.limiter}"


def sweep_grid(of: Architecture, plans: list[Blocking], latency: float | None, mix: float | None) -> Grid:
    """Return a row for each blocking factor: shares of multiply-adds and potentials by width of a load, and what refuses it."""
    title = f"{of.title}: main loop and potential over the register blocking factor"
    shares = {w: f"FFMA %, LDS.{w}" if w > 32 else "FFMA %, LDS" for w in WIDTHS}
    speeds = {w: f"GFLOP/s, {w}" for w in WIDTHS}
    grid = Grid(title, [
        Column("B_R"), *(Column(name, 2) for name in shares.values()), Column("registers", 1),
        *(Column(name) for name in speeds.values()), Column("refused by", right=False),
    ])  # fmt: skip
    for plan in plans:
        each = [analyse(of, replace(plan, width=w), latency, throughput=mix) for w in WIDTHS]
        refused = ", ".join(str(c.number) for c in each[0].conditions if c.holds is False)
        cells = {"B_R": str(plan.TM), "registers": str(plan.tight_registers), "refused by": refused}
        for w, found in zip(WIDTHS, each, strict=True):
            cells[shares[w]] = f"{100 * ffma_share(plan.TM, plan.TN, w):.1f}"
            cells[speeds[w]] = "?" if isinstance(found.potential, Unknown) else f"{found.potential:,.0f}"
        grid.add(cells, "dim" if refused else "")
    return grid


COMMANDS = {"bound": bound_command}
