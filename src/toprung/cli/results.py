"""``toprung results``: what was stored, shown, compared, drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from toprung import backends
from toprung.cli.common import WIDE, console, errors_console, result_file, say, show, table_width
from toprung.errors import BadRecord
from toprung.lab.harness import results
from toprung.lab.harness.accuracy import Graded
from toprung.lab.probe import store as probes
from toprung.report import bench_plot, findings
from toprung.report.bench_table import accuracy_table, compare_table, measurements_table
from toprung.report.grid import Column, Grid
from toprung.report.html import compare as sides
from toprung.report.html.gather import sound
from toprung.report.probe_table import probe_table

_FOLDER = typer.Option("--dir", help="folder with records [default: the user's own, and ./results]")


def list_command(folder: Annotated[Path | None, _FOLDER] = None, wide: Annotated[bool, WIDE] = False) -> None:
    """List the records of this machine's devices, or all in a folder; a damaged or foreign one is named and skipped.

    Examples:

      toprung results list

      toprung results list --dir results
    """
    grid = Grid("", [
        Column("file", right=False), Column("date", right=False), Column("commit", 3, right=False),
        Column("device", 2, right=False),
        Column("entries", 1), Column("command", 4, right=False, text=True),
    ])  # fmt: skip
    found, places = _records([folder] if folder else results.folders()), " and ".join(map(str, results.folders()))
    present = [] if folder else backends.devices()
    listed = found if folder else [(p, r) for p, r in found if any(results.is_of(r, d) for d in present)]
    for path, record in listed:
        e = record["environment"]
        entries = max(len(record[key]) for key in results.HOLDS if key in record)
        device = f"{e['device']['short_name']} ({e['device']['backend']})"
        grid.add({
            "file": str(path), "date": e["date"][:10], "commit": str(e.get("commit")), "device": device,
            "entries": str(entries or "–"), "command": record["what"],
        })  # fmt: skip
    if not found:
        raise BadRecord(
            f"no records in {folder or places or 'results'}: toprung ladder kepler keeps one, and --dir names another folder"
        )
    if listed:
        show(grid, wide)
    else:
        say("nothing of this machine is stored: toprung ladder kepler keeps a first record")
    if others := len(found) - len(listed):
        say(f"{others} records of other machines in {places}: --dir lists a folder whole", "dim")


def show_command(file: Annotated[Path, typer.Argument(help="a record")], wide: Annotated[bool, WIDE] = False) -> None:
    """Show what one record holds and how it came to be.

    Example: toprung results show out.json
    """
    record = sound(file)
    e = record["environment"]
    device = e["device"]
    title = f"{device['short_name']} ({device['backend']})"
    if record.get("graded"):
        show(accuracy_table(_graded(record), title), wide)
    if record.get("findings"):
        show(findings.table(findings.read(record), title, table_width(wide)), wide)
    if record["measurements"]:
        show(measurements_table(record["measurements"], title, device["kind"]), wide)
    if record.get("probe"):
        show(probe_table(probes.read(file)["probe"], title), wide)
    if not any(record.get(key) for key in results.HOLDS[:4]):
        count = f"{len(record['shapes'])} shapes" if record.get("shapes") else f"{len(record.get('bounds', ()))} bounds"
        held = count if record.get("shapes") or record.get("bounds") else "no measurements of competitors"
        text = f"{title}: a record of {record.get('kind', 'another kind')} with {held}: toprung report draws what it can of it"
        say(text)
    lines = [record["what"], f"{e['date']}, commit {e.get('commit')}, {device['runtime']}, driver {device['driver']}"]
    lines += [", ".join(f"{k} {v}" for k, v in e["packages"].items())]
    if record["interrupted"]:
        lines.append("interrupted before the end")
    for line in [*lines, *record.get("notes", []), *record["failures"]]:
        say(line, "dim")


def compare_command(
    old: Annotated[
        str, typer.Argument(help="a record, a folder of records, or a commit of those: digits of its hash, HEAD~1, a tag")
    ],
    new: Annotated[str, typer.Argument(help="the same")],
    tolerance: Annotated[float, typer.Option(help="change in per cent that proves nothing by itself")] = 100 * results.TOLERANCE,
    folder: Annotated[Path | None, _FOLDER] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Say what became faster or slower between two records or commits, beyond noise. Exit code 1 if anything became slower.

    A change counts when the whole 95 % bootstrap interval of the ratio of the medians lies beyond the tolerance by more than the
    samples of both sides scatter; where noise hides it, the pair is undecided.

    Examples:

      toprung results compare before.json after.json

      toprung results compare results/nvidia-h200/kepler-opencl.json results/nvidia-h200/kepler-cuda.json
    """
    if not 0 <= tolerance < 100:
        raise BadRecord(f"a tolerance is between 0 and 100 per cent, not {tolerance:g}")
    (a, b), complaints = sides.both((old, new), [folder] if folder else results.folders())
    changes, alone = sides.compare(a, b, tolerance / 100)
    if not changes:
        raise BadRecord(f"{old} and {new} have no competitor, problem and device in common: nothing can be compared")
    show(compare_table(changes), wide)
    counts = results.counts(changes)
    console.print(", ".join(f"{n} {v}" for v, n in counts.items()) + f"; {alone} on one side only", highlight=False)
    for complaint in complaints:
        say(f"left out: {complaint}", to=errors_console)
    if counts["slower"]:
        raise typer.Exit(1)


def plot_command(
    file: Annotated[Path, typer.Argument(help="a record")],
    out: Annotated[Path, typer.Option(help="a .png, .svg or .pdf file", callback=result_file)],
) -> None:
    """Draw a record again, without the machine it was measured on.

    Example: toprung results plot out.json --out out.svg
    """
    bench_plot.record(sound(file), out)


def _records(paths: Sequence[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Return every good record; name the others on stderr."""
    found = []
    for path, record in results.read_all(paths, sound):
        if isinstance(record, BadRecord):
            say(f"skipped: {record}", to=errors_console)
        else:
            found.append((path, record))
    return found


def _graded(record: dict[str, Any]) -> list[Graded]:
    try:
        return [Graded.read(g) for g in record["graded"]]
    except (KeyError, TypeError) as error:
        raise BadRecord(f"the record's graded entries are damaged ({type(error).__name__}: {error}): measure again") from None


GROUP = "List, show, compare and re-plot stored measurements."
COMMANDS = {"list": list_command, "show": show_command, "compare": compare_command, "plot": plot_command}
