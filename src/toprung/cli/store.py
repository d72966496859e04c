"""``toprung store``: commands that list, export, import, merge and clear tuned entries."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from toprung.cli.common import WIDE, console, errors_console, json_option, result_file, say, show
from toprung.dispatch.tuned import refusal
from toprung.errors import StoreError
from toprung.report import names
from toprung.report.grid import Column, Grid
from toprung.report.text import ms_text, scatter_text
from toprung.store import STATUSES, Entry, Imported, Machine, Store, shipped
from toprung.tile import Tile

_STORE = typer.Option("--store", help="the database, where it is not the user's own")
_DEVICE = typer.Option("--device", help="only entries of this device, by its slug: nvidia-h200")
_BACKEND = typer.Option("--backend", help="only entries of this backend: cuda, opencl")
_CLASS = typer.Option("--class", help="only entries of this problem class: 'large NN v444'")
_KERNEL = typer.Option("--kernel", help="only entries of this kernel family: tiled, skinny, cublas, numpy")
_STATUS = typer.Option("--status", help=f"only entries with this status: {', '.join(STATUSES)}")
_BEST = typer.Option("--best", min=1, help="only so many right entries of each shape and kernel, the fastest")


SHOWN = 60
"""Number of characters of a message that a table has room for."""


def list_command(
    device: Annotated[str | None, _DEVICE] = None,
    backend: Annotated[str | None, _BACKEND] = None,
    problem_class: Annotated[str | None, _CLASS] = None,
    kernel: Annotated[str | None, _KERNEL] = None,
    status: Annotated[str | None, _STATUS] = None,
    best: Annotated[int | None, _BEST] = None,
    package: Annotated[bool, typer.Option("--shipped", help="what came with the package, in place of what was tuned here")] = False,
    json: Annotated[Path | None, json_option("write what is listed to a file, as store export does")] = None,
    store: Annotated[Path | None, _STORE] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """List tuned entries.

    Examples:

      toprung store list --best 1

      toprung store list --device nvidia-h200 --status wrong
    """
    chosen = _store(store)
    if package:
        if best or status or problem_class or kernel or not (device and backend):
            raise StoreError("what is shipped is listed whole, with --device and --backend: toprung devices says their names")
        found = shipped(Machine(device, device, backend, "", ""), complaints := list[str]())
        for text in complaints:
            say(text, to=errors_console)
    else:
        found = _chosen(chosen, best, device=device, backend=backend, problem_class=problem_class, kernel=kernel, status=status)
    if not found:
        say(f"no such entries in {chosen.path}: toprung tune makes some")
    else:
        show(_table(found), wide)
        console.print(f"{len(found)} entries", highlight=False)
    if json is not None:
        chosen.export(json, found)


def export_command(
    file: Annotated[Path, typer.Argument(help="the JSON file to write; - writes to standard output", callback=result_file)],
    device: Annotated[str | None, _DEVICE] = None,
    backend: Annotated[str | None, _BACKEND] = None,
    problem_class: Annotated[str | None, _CLASS] = None,
    kernel: Annotated[str | None, _KERNEL] = None,
    status: Annotated[str | None, _STATUS] = None,
    best: Annotated[int | None, _BEST] = None,
    store: Annotated[Path | None, _STORE] = None,
) -> None:
    """Write entries to a file that store import takes, and that can come with the package.

    Examples:

      toprung store export tuned.json

      toprung store export src/toprung/store/shipped/nvidia-h200-cuda.json --device nvidia-h200 --backend cuda --best 2
    """
    chosen = _store(store)
    found = _chosen(chosen, best, device=device, backend=backend, problem_class=problem_class, kernel=kernel, status=status)
    if not found:
        raise StoreError(f"no such entries in {chosen.path}: nothing was written")
    count = chosen.export(file, found)
    say(f"{count} entries written to {file}", to=errors_console)


def import_command(
    file: Annotated[Path, typer.Argument(help="a file that store export wrote")], store: Annotated[Path | None, _STORE] = None
) -> None:
    """Take the entries of a file. Damaged ones are named and left out; exit code 2 if there were any.

    Entries of other devices are kept for when they are here; those of another driver are verified before they are used.

    Example: toprung store import tuned.json
    """
    _say(_store(store).import_(file, refusal), file)


def merge_command(
    database: Annotated[Path, typer.Argument(help="another tuned.sqlite, which stays as it is")],
    store: Annotated[Path | None, _STORE] = None,
) -> None:
    """Take the entries of another database; of two that differ only in their samples the newer one is kept.

    Example: toprung store merge /media/stick/tuned.sqlite
    """
    _say(_store(store).merge(database, refusal), database)


def clear_command(
    device: Annotated[str | None, _DEVICE] = None,
    backend: Annotated[str | None, _BACKEND] = None,
    problem_class: Annotated[str | None, _CLASS] = None,
    kernel: Annotated[str | None, _KERNEL] = None,
    status: Annotated[str | None, _STATUS] = None,
    damaged: Annotated[
        bool, typer.Option(help="only entries that are damaged; a file that is no store at all is moved aside")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    store: Annotated[Path | None, _STORE] = None,
) -> None:
    """Remove entries: all, or those that the options choose.

    Examples:

      toprung store clear --kernel tiled --status crashed

      toprung store clear --damaged --yes
    """
    chosen = _store(store)
    filters = {"device": device, "backend": backend, "problem_class": problem_class, "kernel": kernel, "status": status}
    if damaged and any(filters.values()):
        raise StoreError("--damaged goes alone: what is damaged has no device or kernel to be chosen by")
    what = "what is damaged" if damaged else "these entries" if any(filters.values()) else "every entry"
    if not yes:
        if not sys.stdin.isatty():
            raise StoreError(f"{what} of {chosen.path} would be removed, and there is nobody to ask: add --yes")
        typer.confirm(f"Remove {what} of {chosen.path}?", abort=True)
    done = chosen.clear_damaged() if damaged else f"{chosen.clear(None, **filters)} entries were removed from {chosen.path}"
    say(done)


def _store(path: Path | None) -> Store:
    return Store.default() if path is None else Store(path)


def _chosen(store: Store, best: int | None, **filters: str | None) -> list[Entry]:
    """Return the entries that the options of a command select, and name damaged ones on stderr."""
    if (status := filters.get("status")) is not None and status not in STATUSES:
        raise StoreError(f"there is no status {status!r}; there is: {', '.join(STATUSES)}")
    complaints: list[str] = []
    if best is None:
        found = list(store.entries(None, complaints=complaints, **filters))
    elif filters.pop("status", None) in (None, "right"):
        found = store.fastest(None, best, complaints, **filters)
    else:
        raise StoreError("--best chooses among right entries: leave --status out")
    for text in complaints:
        say(text, to=errors_console)
    return found


def _say(done: Imported, where: Path) -> None:
    """Print how many entries were taken, and each that was refused; exit with code 2 if there were any."""
    text = f"{done.taken} entries taken from {where}, {done.known} were known, {len(done.refused)} refused"
    say(text)
    for at, reason in done.refused:
        say(f"refused: {at}: {reason}", to=errors_console)
    if done.refused:
        raise typer.Exit(2)


def _table(entries: Sequence[Entry]) -> Grid:
    cold = any(e.cold_seconds for e in entries)
    grid = Grid("", [
        Column("device", 3, right=False), Column("class", 4, right=False), Column("problem", right=False),
        Column("candidate", right=False, text=True), Column(names.MS), Column(names.SPREAD), *[Column("cold ms", 1)] * cold,
        Column(names.GRADE, 2), Column("status", right=False, text=True), Column("date", 5, right=False),
    ])  # fmt: skip
    for e in entries:
        sizes = "×".join(str(e.shape[n]) for n in ("M", "N", "K") if n in e.shape)
        sizes += f" ×{e.shape['batch']}" if e.shape.get("batch", 1) != 1 else ""
        tile = str(Tile(**e.candidate["tile"])) if e.candidate["tile"] else ""
        said = " ".join(e.message.split())[:SHOWN]  # the beginning of an error message
        grid.add({
            "device": Text(str(e.machine)), "class": e.problem_class, "problem": sizes,
            "candidate": Text(f"{e.kernel} {tile}".rstrip()), names.MS: ms_text(e.median) if e.seconds else "",
            names.SPREAD: scatter_text(e.seconds),
            "cold ms": ms_text(statistics.median(e.cold_seconds)) if e.cold_seconds else "",
            names.GRADE: f"{e.grade:.3g}" if e.grade else "", "date": e.date[:10],
            "status": Text(f"{e.status}: {said}" if said else e.status),
        })  # fmt: skip
    return grid


GROUP = "List, export, import, merge and clear what was tuned."
COMMANDS = {
    "list": list_command,
    "export": export_command,
    "import": import_command,
    "merge": merge_command,
    "clear": clear_command,
}
