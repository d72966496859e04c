"""``toprung inspect``."""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from toprung.backends.nvrtc import compile_cubin, device_of, version
from toprung.cli.common import WIDE, checked_file, end, json_option, parse_switches, parse_tile, put, result_file, say, show
from toprung.cli.progress import Progress
from toprung.errors import ToprungError, UnknownName, Unsupported
from toprung.kernels.record import kernel_source
from toprung.lab.bounds.occupancy import Occupancy, occupancy
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness.climb import variants
from toprung.lab.harness.single import Note, note_path, tile_of
from toprung.lab.rung import ladder, rung
from toprung.lab.sass.machine_code import MachineCode, inspect_source
from toprung.paths import deliver, is_stream
from toprung.report import names
from toprung.report.grid import Column, Grid

SHOWN = {"FFMA": ("LDS", "STS", "LDG"), "HGMMA": ("SYNCS", "WARPGROUP", "UTMALDG")}
"""Instruction that a main loop is there for, and those with columns of their own beside it in a ladder's table."""

MEANT = {
    "spill": "bytes of a thread stored or loaded because registers ran out", "stack": "bytes of its arrays and of what was spilled",
    "kept": "% of FFMA's sources that need no read", "bank": "cycles lost to register banks",
    "held": "blocks that an SM holds at once",
}  # fmt: skip
"""Meaning of columns whose names are short."""


def inspect(
    name: Annotated[str, typer.Argument(metavar="RUNG", help="a rung such as kepler/r07, or a ladder", show_default=False)] = "",
    arch: Annotated[str, typer.Option(help="sm_80, sm_90, …")] = "sm_90",
    switch: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a rung's switch; may be repeated")] = None,
    tile: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of a tile parameter; may be repeated")] = None,
    json: Annotated[Path | None, json_option("store every count in this file")] = None,
    cubin: Annotated[
        Path | None, typer.Option(help="store the machine code in this file, for toprung run --cubin", callback=result_file)
    ] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Show the machine code of a rung, compiled as CUDA: registers, spills, instructions, occupancy. No GPU is needed.

    Examples:

      toprung inspect kepler

      toprung inspect kepler/r07

      toprung inspect kepler/r08 --arch sm_80 --switch SHUFFLE=1 --tile BK=8

      toprung inspect kepler/r07 --cubin r07.cubin
    """
    if cubin is not None and "/" not in name:
        raise UnknownName("rung to store the machine code of", name, ["a rung such as kepler/r07"])
    beside = None if cubin is None or is_stream(cubin) else checked_file(note_path(cubin))
    device = device_of(arch)
    switches, changes = parse_switches(switch or []), parse_tile(tile or [])
    if "/" in name:
        one = rung(name)
        rows = [RungCompetitor(one, one.options(device, switches), " ".join(switch or []))]
    else:
        rows = variants(ladder(name).rungs, device, switches)
    found: list[tuple[RungCompetitor, MachineCode]] = []
    failures = []
    if not rows:
        raise Unsupported(f"no rung of {name} can be compiled as CUDA: there is no machine code to be shown")
    with Progress(len(rows)) as progress:
        for entry in rows:
            try:
                entry.tile = tile_of(entry.rung, entry.options, changes, device)
                found.append((entry, inspect_source(kernel_source(entry.rung, entry.tile, entry.options), arch)))
            except ToprungError as error:
                if len(rows) == 1:
                    raise
                failures.append(str(error))
            progress.step(f"{entry} compiled", 1.0)
    if len(rows) == 1:
        put(_detail(*found[0]))
    else:
        hidden = show(_overview(found, f"{name} on {arch}, NVRTC {version()}"), wide)
        work = _work(code for _, code in found)
        said = [f"{work} and what is right of it: the main loop, as it stands in the code", "4×128: four of 128 bits"]
        said += [f"{column}: {text}" for column, text in MEANT.items() if column not in hidden]
        say("; ".join(said), "dim")
    if cubin is not None:
        entry = found[0][0]
        assert entry.tile is not None
        deliver(cubin, compile_cubin(kernel_source(entry.rung, entry.tile, entry.options), arch).code)
        if beside is not None:
            # facts that toprung run needs to launch it
            note = Note(entry.rung.name, entry.tile.given(), dict(entry.options), entry.rung.routine)
            deliver(beside, (jsonlib.dumps(note.describe(), indent=1) + "\n").encode())
            say(f"stored as {cubin}, and beside it what it was made from")
    if json is not None:
        records = [
            {
                "rung": e.name, "tile": e.tile.given() if e.tile else {}, "options": dict(e.options), **m.describe(),
                "compiler": f"NVRTC {version()}",
                "blocks": held.blocks if (held := held_blocks(e, m)) else None, "occupancy": held.share if held else None,
            }
            for e, m in found
        ]  # fmt: skip
        deliver(json, (jsonlib.dumps(records, indent=1) + "\n").encode())
    end(failures)


def _work(codes: Iterable[MachineCode]) -> str:
    """Return the instruction that kernels are there for: matrix instructions, or multiply-adds."""
    return "HGMMA" if any(code.loop.counts.get("HGMMA") for code in codes) else "FFMA"


def _overview(found: list[tuple[RungCompetitor, MachineCode]], title: str) -> Grid:
    work = _work(code for _, code in found)
    share = f"{work} %"
    grid = Grid(title, [
        Column("rung", right=False), Column(names.TILE, 8, right=False), Column(names.REGISTERS), Column("spill"),
        Column("stack"), Column("shared"),
        Column(work, 1), *(Column(name, 2) for name in SHOWN[work]), Column("rest", 5), Column("kept", 4), Column("bank", 4),
        Column("held", 3), Column(share),
    ])  # fmt: skip
    for entry, code in found:
        loop, held = code.loop, held_blocks(entry, code)
        columns = (work, *SHOWN[work])
        rest = loop.instructions - sum(count for kind, count in loop.counts.items() if kind.split(".")[0] in columns)
        grid.add({
            "rung": f"{entry.number} {entry.variant}".rstrip(), names.TILE: str(entry.tile), names.REGISTERS: str(code.registers),
            "spill": str(max(code.spill_stores, code.spill_loads)), "stack": str(code.stack_bytes),
            "shared": str(code.shared_bytes), **{name: _count(loop.counts, name) for name in columns},
            "rest": str(rest), "kept": f"{100 * loop.reads.kept_share:.0f}", "bank": str(loop.reads.extra_cycles),
            "held": str(held.blocks) if held else "?", share: f"{100 * loop.share(work):.1f}",
        })  # fmt: skip
    return grid


def held_blocks(entry: RungCompetitor, code: MachineCode) -> Occupancy | None:
    """Return what an SM holds of a kernel at once; None for an architecture whose figures are unknown."""
    assert entry.tile is not None
    try:
        return occupancy(code.arch, entry.tile.work_items + entry.rung.more_items, code.registers, code.shared_bytes)
    except UnknownName:
        return None


def _count(counts: Mapping[str, int], name: str) -> str:
    """Return how many of an instruction there are; of memory instructions how many by how many bits, read-only loads included."""
    found: Counter[str] = Counter()
    for kind, count in counts.items():
        if kind.split(".")[0] == name:
            found[kind.split(".")[1] if "." in kind else ""] += count
    return " ".join(f"{count}×{bits}" if bits else str(count) for bits, count in found.items()) or "–"


def _detail(entry: RungCompetitor, code: MachineCode) -> Table:
    table = Table(title=f"{entry} {entry.tile} on {code.arch}, NVRTC {version()}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("main loop", justify="right")
    table.add_column("whole kernel", justify="right")
    table.add_row("registers", "", str(code.registers))
    table.add_row("spilled bytes, stores", "", str(code.spill_stores))
    table.add_row("spilled bytes, loads", "", str(code.spill_loads))
    table.add_row("stack bytes", "", str(code.stack_bytes))
    table.add_row("shared bytes", "", str(code.shared_bytes), end_section=True)
    for name, count in code.counts.items():
        table.add_row(name, str(code.loop.counts.get(name, 0)), str(count))
    table.add_row("all", str(code.loop.instructions), str(sum(code.counts.values())), style="bold")
    table.add_row("FFMA %", f"{100 * code.loop.ffma_share:.1f}", "", style="bold", end_section=True)
    reads = code.loop.reads
    table.add_row("sources of FFMA kept, %", f"{100 * reads.kept_share:.1f}", "")
    table.add_row("sources marked .reuse, %", f"{100 * reads.marked / max(reads.sources, 1):.1f}", "")
    table.add_row("registers read by an FFMA", f"{reads.reads_each:.2f}", "")
    table.add_row("register-bank conflicts, cycles", str(reads.extra_cycles), "", end_section=True)
    if held := held_blocks(entry, code):
        table.add_row("blocks an SM holds", "", f"{held.blocks}")
        table.add_row("warps an SM holds", "", f"{held.warps}")
        table.add_row("occupancy, %", "", f"{100 * held.share:.0f}")
        table.add_row("limited by", "", held.limiter)
    return table


COMMANDS = {"inspect": inspect}
