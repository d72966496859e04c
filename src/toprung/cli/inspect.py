"""``toprung inspect``."""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from toprung.backends.nvrtc import device_of
from toprung.build import rung_source
from toprung.cli.common import console, parse_switches
from toprung.climb import Entry, entries
from toprung.device import Device
from toprung.errors import ToprungError, UnknownName
from toprung.machine_code import MachineCode, inspect_source
from toprung.paths import publish
from toprung.rung import Rung, ladder, rung
from toprung.tile import Tile

SHOWN = {"FFMA": ("LDS", "STS", "LDG"), "HGMMA": ("SYNCS", "WARPGROUP", "UTMALDG")}
"""What a main loop is there for, and the instructions with columns of their own beside it in a ladder's table."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    name: Annotated[str, typer.Argument(metavar="RUNG", help="a rung such as kepler/r07, or a ladder")],
    arch: Annotated[str, typer.Option(help="sm_80, sm_90, …")] = "sm_90",
    switch: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a rung's switch; may be repeated")] = None,
    tile: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a tile parameter; may be repeated")] = None,
    json: Annotated[Path | None, typer.Option(help="store every count in this file")] = None,
) -> None:
    """Show the machine code of a rung, compiled as CUDA: registers, spills, instructions by class. No GPU is needed.

    Examples:

      toprung inspect kepler

      toprung inspect kepler/r07

      toprung inspect kepler/r08 --arch sm_80 --switch SHUFFLE=1 --tile BK=8
    """
    device = device_of(arch)
    switches, changes = parse_switches(switch or []), parse_switches(tile or [])
    if "/" in name:
        one = rung(name)
        rows = [Entry(one, options=one.options(device, switches), variant=" ".join(switch or []))]
    else:
        rows = entries(ladder(name).rungs, device, None, switches)
    found: list[tuple[Entry, MachineCode]] = []
    failures = []
    for entry in rows:
        assert isinstance(entry.who, Rung)
        try:
            entry.tile = _tile(entry.who, entry.options, changes, device)
            found.append((entry, inspect_source(rung_source(entry.who, entry.tile, entry.options), arch)))
        except ToprungError as error:
            if len(rows) == 1:
                raise
            failures.append(str(error))
    if len(rows) == 1:
        console.print(_detail(*found[0]))
    else:
        console.print(_overview(found, f"{name} on {arch}"))
        work = "HGMMA" if any(m.loop.counts.get("HGMMA") for _, m in found) else "FFMA"
        console.print(f"{work} and what follows: the main loop, as it stands in the code; 4×128: four of 128 bits", style="dim")
    for line in failures:
        console.print(line, style="bold red", markup=False, highlight=False, soft_wrap=True)
    if json is not None:
        records = [
            {"rung": str(e.who), "tile": e.tile.given() if e.tile else {}, "options": dict(e.options), **m.describe()}
            for e, m in found
        ]
        publish(json, (jsonlib.dumps(records, indent=1) + "\n").encode())
    if failures:
        raise typer.Exit(1)


def _tile(which: Rung, options: Mapping[str, int], changes: Mapping[str, int], device: Device) -> Tile:
    """The rung's tile for a GPU, with some parameters changed."""
    chosen = which.tile_for(device, options)
    for name in changes:
        if name not in chosen.given():
            raise UnknownName(f"tile parameter of {which}", name, chosen.given())
    changed = replace(chosen, **changes)
    which.check(changed, options, device)
    return changed


def _overview(found: list[tuple[Entry, MachineCode]], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("rung", no_wrap=True, min_width=15)
    table.add_column("tile", overflow="ellipsis", no_wrap=True, max_width=28)
    work = "HGMMA" if any(code.loop.counts.get("HGMMA") for _, code in found) else "FFMA"
    columns = (work, *SHOWN[work])
    widths = (4, 5, 6, len(work), 12, 10, 10, 4)
    for column, width in zip(("regs", "spill", "shared", *columns, "rest"), widths, strict=True):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    table.add_column(f"{work} %", justify="right", no_wrap=True, min_width=6)
    for entry, code in found:
        loop = code.loop
        shown = [_count(loop.counts, name) for name in columns]
        rest = loop.instructions - sum(count for kind, count in loop.counts.items() if kind.split(".")[0] in columns)
        numbers = (str(code.registers), str(code.spills), str(code.shared_bytes))
        label = f"{entry.number} {entry.variant}".rstrip()
        table.add_row(label, str(entry.tile), *numbers, *shown, str(rest), f"{100 * loop.share(work):.1f}")
    return table


def _count(counts: Mapping[str, int], name: str) -> str:
    """How many of an instruction there are; of memory instructions how many by how many bits, read-only loads included."""
    found: Counter[str] = Counter()
    for kind, count in counts.items():
        if kind.split(".")[0] == name:
            found[kind.split(".")[1] if "." in kind else ""] += count
    return " ".join(f"{count}×{bits}" if bits else str(count) for bits, count in found.items()) or "–"


def _detail(entry: Entry, code: MachineCode) -> Table:
    table = Table(title=f"{entry.who} {entry.variant} {entry.tile} on {code.arch}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("main loop", justify="right")
    table.add_column("whole kernel", justify="right")
    table.add_row("registers", "", str(code.registers))
    table.add_row("spilled bytes, stores and loads", "", f"{code.spill_stores} {code.spill_loads}")
    table.add_row("stack bytes", "", str(code.stack_bytes))
    table.add_row("shared bytes", "", str(code.shared_bytes), end_section=True)
    for name, count in code.counts.items():
        table.add_row(name, str(code.loop.counts.get(name, 0)), str(count))
    table.add_row("all", str(code.loop.instructions), str(sum(code.counts.values())), style="bold")
    table.add_row("FFMA %", f"{100 * code.loop.ffma_share:.1f}", "", style="bold")
    return table
