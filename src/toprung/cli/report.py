"""``toprung report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toprung import backends
from toprung.cli.common import console, errors_console, page_file, result_file, say
from toprung.cli.progress import Progress
from toprung.errors import BadRecord
from toprung.lab.harness import results
from toprung.paths import deliver, is_stream
from toprung.report.html import compare as sides
from toprung.report.html import page
from toprung.report.html.gather import Gathered, chosen, gather
from toprung.report.html.limits import Limits

MOST_NAMED = 3
"""Damaged files that the terminal names; the page names all that is left out."""


def report_command(
    records: Annotated[
        list[Path] | None, typer.Argument(help="records, and folders with records; by default the user's own and ./results")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder that index.html is written to", callback=page_file)] = Path("report"),
    device: Annotated[
        str | None, typer.Option(help="whose records: a slug such as nvidia-h200, or a part of a name; by default this machine's")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="two records, folders, devices or commits side by side: what B made faster or slower"),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="change in per cent that proves nothing by itself")] = 100 * results.TOLERANCE,
    fail: Annotated[bool, typer.Option("--fail-on-regression", help="exit code 1 if --compare found anything slower")] = False,
    code: Annotated[bool, typer.Option("--code/--no-code", help="compile the rungs for instruction mixes and bounds")] = True,
    picture: Annotated[Path | None, typer.Option(help="write the ladders as this .svg, too", callback=result_file)] = None,
) -> None:
    """Make one self-contained HTML page from stored measurements: ladders, roofline, errors, every rung. Nothing is measured.

    Damaged files, those of another version and those of other devices are left out, and listed at the end of the page.

    Examples:

      toprung report

      toprung report results/nvidia-h200 --out docs/report

      toprung report --compare results/nvidia-h200/kepler-opencl.json results/nvidia-h200/kepler-cuda.json
    """
    page.needed()
    if not 0 <= tolerance < 100:
        raise BadRecord(f"a tolerance is between 0 and 100 per cent, not {tolerance:g}")
    if picture is not None and picture.suffix != ".svg" and not is_stream(picture):
        raise BadRecord(f"the picture is written as .svg, not as {picture.name}")
    if fail and compare is None:
        raise BadRecord("--fail-on-regression says what --compare A B shall do: give both")
    paths = records or results.folders(ours=device is not None)
    present = [] if records or device or compare else backends.devices()
    comparison: page.Comparison | None = None
    if compare is None:
        found = gather(paths, device, present=present)
    else:
        comparison, found = _compared(paths, compare, tolerance / 100, device)
    if present and found.records and not found.mine:
        of = found.records[0].device["short_name"]
        here = ", ".join(dict.fromkeys(d.short_name for d in present))
        say(
            f"nothing of this machine ({here}) is stored: toprung ladder kepler keeps a first record. The page is about {of}",
            "yellow",
        )
    with Progress() as progress:
        progress.step("making the page")
        limits = Limits(found, code, lambda rung: progress.step(f"reading the machine code of {rung}"))
        made = page.render(found, limits, comparison).encode(errors="replace")
        deliver(out, made)
        if picture is not None and (drawn := page.picture(found, limits)) is not None:
            deliver(picture, drawn.encode())
    for note in limits.notes:
        say(note, "dim", to=errors_console)
    if not found.records:
        console.print("no measurements: the page says how to make some", style="yellow")
    say(f"{out}: {len(made) / 1e6:.1f} MB; open it in a browser")
    wrong = [c for c in found.complaints if not c.elsewhere][:MOST_NAMED]
    for complaint in wrong:
        say(f"left out: {complaint}", to=errors_console)
    if more := len(found.complaints) - len(wrong):
        what = f"file{'s' * (more > 1)}{' more' * bool(wrong)}"
        say(f"left out: {more} {what}, which the page lists at its end with the reasons", "dim", to=errors_console)
    if records and found.complaints and not found.records:
        raise typer.Exit(1)  # none of what was named could be read
    if comparison:
        console.print(", ".join(f"{n} {v}" for v, n in comparison.counts.items()), markup=False, highlight=False)
        if fail and comparison.counts["slower"]:
            raise typer.Exit(1)


def _compared(paths: list[Path], names: tuple[str, str], tolerance: float, device: str | None) -> tuple[page.Comparison, Gathered]:
    """Return both sides compared, and side B for the rest of the page."""
    (a, b), complaints = sides.both(names, paths, device)
    changes, alone = sides.compare(a, b, tolerance)
    if not changes:
        raise BadRecord(f"{names[0]} and {names[1]} have no competitor and problem in common: nothing can be compared")
    slug = chosen(b, None)
    found = Gathered(tuple(r for r in b if r.slug == slug), tuple(complaints), slug)
    return page.Comparison(sides.chart(names, a, b, changes, tolerance), results.counts(changes), alone), found


COMMANDS = {"report": report_command}
