"""``toprung explain``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from toprung import backends
from toprung.backends import nvrtc
from toprung.cli.common import WIDE, console, json_option, parse_sizes, parse_switches, parse_tile, put, say, show, size_name
from toprung.cli.progress import Progress
from toprung.device import Device
from toprung.errors import BadSize, IllegalTile
from toprung.kernels.record import LANGUAGES
from toprung.lab.bounds.figures import Unknown
from toprung.lab.bounds.levels import rate
from toprung.lab.bounds.occupancy import ROOMS, occupancy
from toprung.lab.explain import Explanation, device_for, device_named, explain
from toprung.lab.harness import results
from toprung.lab.harness.climb import best_for, default_sizes, problem_of, variants
from toprung.lab.harness.single import tile_of
from toprung.lab.rung import Rung, ladder, rung
from toprung.report.bound_table import bounds_record, overview
from toprung.report.text import scatter_text

BAR, LEAST_BAR, REST = 40, 8, 72
"""Cells of the longest bar at most and at least, and of all else in the table of levels where bars are between."""


def explain_command(
    name: Annotated[str, typer.Argument(metavar="RUNG", help="a rung such as turing/r09, or a ladder", show_default=False)] = "",
    device: Annotated[
        str | None,
        typer.Option(help="an id, or a part of a name (see toprung devices); also one that is not here: nvidia-h200, a100"),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="sm_80, sm_90, …: no such GPU is needed")] = None,
    size: Annotated[str | None, typer.Option(help="512, or 35x79x19 (M x N x K)")] = None,
    switch: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a rung's switch; may be repeated")] = None,
    tile: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a tile parameter; may be repeated")] = None,
    stored: Annotated[Path, typer.Option("--results", help="folder of stored measurements and probes")] = Path("results"),
    json: Annotated[Path | None, json_option("store every level in this file")] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Explain a rung's speed: what its code asks for at each level of a device, which level stops it, what would help.

    The figures are those that toprung probe stored for the device; for what was not probed those of the vendor's documents.

    Examples:

      toprung explain turing/r09

      toprung explain turing/r09 --device nvidia-h200

      toprung explain turing/r09 --arch sm_90 --size 4096

      toprung explain turing --arch sm_90 --size 4096
    """
    if device is not None and arch is not None:
        raise BadSize("give --device or --arch, not both")
    one = rung(name) if "/" in name else None
    of = ladder(name.partition("/")[0])
    where = device_for(arch) if arch is not None else _device(device, stored, [one] if one else of.rungs)
    sizes = parse_sizes(size) if size is not None else [default_sizes(of, where)[-1]]
    if len(sizes) != 1:
        raise BadSize(f"toprung explain takes one size, not {len(sizes)}")
    problem = problem_of(of, sizes[0])
    switches, changes = parse_switches(switch or []), parse_tile(tile or [])
    notes: list[str] = []
    found: list[tuple[str, Explanation]] = []
    if one is not None:
        options = one.options(where, switches)
        found.append(("", explain(one, where, problem, options, tile_of(one, options, changes, where), stored)))
        _detail(found[0][1], size_name(sizes[0]))
    else:
        if changes:
            raise BadSize("--tile changes one rung's tile: name the rung, such as turing/r09")
        rows = variants(of.rungs, where, switches)
        with Progress(len(rows)) as progress:
            for entry in rows:
                try:
                    found.append((entry.variant, explain(entry.rung, where, problem, entry.options, None, stored)))
                except IllegalTile as error:
                    notes.append(str(error))
                progress.step(f"{entry} explained", 1.0)
        notes += [note for _, e in found for note in e.notes]
        notes += [f"{e.rung} {variant}".rstrip() + f": {e.beaten}" for variant, e in found if e.beaten]
        show(overview(found, f"{of.name} at {size_name(sizes[0])} on {where.short_name}"), wide)
    for note in dict.fromkeys(notes):
        say(note, "dim")
    if json is not None:
        results.write(json, bounds_record(results.command(), where, found))


def _device(name: str | None, stored: Path, rungs: Sequence[Rung]) -> Device:
    """Return the device named, or the best one; in place of a CPU, whose machine code is not counted, the GPU that we probed.

    Without the packages that compile for that GPU, a CPU stays where it runs the rungs.
    """
    if name is not None:
        return device_named(name, stored)
    where = best_for(rungs)
    written = {LANGUAGES[r.source.suffix] for r in rungs}
    as_cuda = not written.isdisjoint(nvrtc.LANGUAGES) and not (nvrtc.missing() and written <= set(backends.languages(where)))
    return where if where.kind == "gpu" or not as_cuda else device_for("sm_90")


def _detail(e: Explanation, size: str) -> None:
    figures = e.figures
    say(f"{e.rung.name}: {e.rung.idea}", "bold")
    lines = [
        f"on {e.device.short_name} at {size}; figures: {figures.source}",
        f"tile       {e.tile}, {e.tile.work_items} work-items",
    ]
    if e.code:
        code, reads = e.code, e.code.loop.reads
        spilled = max(code.spill_stores, code.spill_loads)
        beside = f", {spilled} bytes spilled" * bool(spilled) + f", {code.stack_bytes} bytes of stack" * bool(code.stack_bytes)
        lines.append(f"resources  {code.registers} registers{beside}, {code.shared_bytes:,} bytes of shared memory a block")
        if (key := figures.arch.rstrip("af")) in ROOMS:
            held = occupancy(key, e.tile.work_items + e.rung.more_items, code.registers, code.shared_bytes)
            lines.append(f"occupancy  {held.blocks} blocks an SM, {100 * held.share:.0f} % of its warps; scarcest: {held.limiter}")
        if code.loop.instructions:
            mix = ", ".join(f"{n} {kind}" for kind, n in sorted(code.loop.counts.items(), key=lambda item: -item[1]))
            lines.append(f"main loop  {mix}")
            kept = f"{100 * reads.kept_share:.0f} % of their sources kept from the one before"
            lost = f"{reads.conflicts_each:.2f} cycles each lost to register banks"
            lines += [] if e.rung.tensor else [f"           {100 * code.loop.ffma_share:.1f} % FFMA; {kept}, {lost}"]
    for line in lines:
        say(line, indent=11)
    put(_levels(e))
    if not figures.source.startswith("probe") and any(isinstance(level.seconds, Unknown) for level in e.bound.levels):
        say("unknown figures are measured by toprung probe, on the device itself", "dim")
    most, found, unit = e.bound.figure, e.bound.limiter, e.bound.work.unit
    memory = e.without_caches
    if not isinstance(memory, Unknown):
        text = f"without caches, as the paper counts (equation 10): {memory:,.0f} GFLOP/s from memory"
        say(text, "dim")
    if found and not isinstance(most, Unknown):
        console.print(f"bound      {most:,.0f} {unit}, limited by {found.name}", style="bold", highlight=False)
    elif isinstance(most, Unknown):
        where = f"{figures.name}, which no probe and no document gives; toprung probe measures them there"
        say(f"bound      {most} of {where}", "bold", indent=11)
    if e.measured and e.speed is not None:
        share = f", {100 * e.share:.1f} % of the bound" if e.share is not None else ""
        helpers = f", {100 * e.measured.helpers:.0f} % of its time in helpers" if e.measured.helpers else ""
        scatters = f" ± {percent} %" if (percent := scatter_text(e.measured.seconds)) else " (one sample)"
        where = f" ({e.record})" if e.record else ""
        say(f"measured   {e.speed:,.0f} {unit}{scatters}{share}{helpers}{where}")
        if e.beaten:
            say(e.beaten, "yellow", indent=11)
    else:
        console.print("measured   nothing stored here for this tile, size and device", highlight=False)
    if e.next and e.device.kind == "gpu" and not e.beaten:  # a CPU's machine code is not read: most levels are unknown
        say(f"next       {e.next}", indent=11)
    for note in e.notes:
        say(note, "dim")


def _levels(e: Explanation) -> Table:
    """Return a table of every level's limit as a bar; what was measured cannot be longer than the shortest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    longest = max(LEAST_BAR, min(BAR, console.width - REST))
    table.add_column("level", no_wrap=True)
    table.add_column(e.bound.work.unit, justify="right", no_wrap=True)
    table.add_column("busy at\nthe bound", no_wrap=True, min_width=longest)
    table.add_column("counted", overflow="fold")
    slowest = e.bound.seconds
    for level in e.bound.levels:
        if isinstance(level.seconds, Unknown):
            table.add_row(level.name, "?", "", str(level.seconds), style="dim")
            continue
        most = rate(e.bound.work, level.seconds)
        busy = 0.0 if isinstance(slowest, Unknown) or not slowest else level.seconds / slowest
        limiting = e.bound.limiter is not None and level.name == e.bound.limiter.name
        bar = Text("█" * round(longest * busy), style="red" if limiting else "blue")
        speed = "–" if isinstance(most, Unknown) or most == float("inf") else f"{most:,.0f}"
        table.add_row(level.name, speed, bar, level.counted, style="bold" if limiting else None)
    return table


COMMANDS = {"explain": explain_command}
