"""Headlines: the best in one figure each, by the same rule and function as the cards of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toprung.report.html.gather import gather
from toprung.report.html.views import headlines


def headline_table(words: Sequence[str], root: Path) -> str:
    """Return a row for each headline of a folder of results; a further word is the device's slug."""
    folder, *device = words
    gathered = gather([root / folder], *device)
    lines = ["| what | size | best | speed | beside the vendor |", "|---|---|---|---:|---:|"]
    for one in headlines(gathered):
        lines.append(f"| {one.what} | {one.problem} | `{one.who}` | {one.figure} | {one.share or '–'} |")
    names = sorted({Path(name).name for one in headlines(gathered) for name in one.records})
    return "\n".join([*lines, "", f"From {', '.join(f'`{folder}/{name}`' for name in names)}.  "])


TABLES = {"headlines": headline_table}
