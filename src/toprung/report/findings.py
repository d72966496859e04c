"""Outcome of guidelines: a table on the terminal, and words for the documentation's."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from toprung.errors import DAMAGE, BadRecord
from toprung.lab.guidelines.base import FAILS, HOLDS, WRONG, Finding
from toprung.report import names
from toprung.report.grid import Column, Grid
from toprung.report.text import gflops_text, scatter_text

STYLES = {HOLDS: "green", FAILS: "yellow", WRONG: "bold red"}
NUMBERS, LEAST, MOST = 36, 24, 72
"""Cells of the columns beside the words, and cells that a line of words has at least and at most."""


def read(record: Mapping[str, Any]) -> list[Finding]:
    """A record's findings, or BadRecord."""
    try:
        return [Finding.read(f) for f in record["findings"]]
    except DAMAGE as error:
        raise BadRecord(f"the record's findings are damaged ({type(error).__name__}: {error}): measure again") from None


def table(findings: Sequence[Finding], title: str, width: int | None) -> Grid:
    """Return every guideline: what the paper says, each case with its speed, and the verdict with the ratio that it rests on.

    Words are broken into lines for ``width`` cells, None for no limit.
    """
    words = MOST if width is None else max(LEAST, min(MOST, width - NUMBERS))
    grid = Grid(title, [
        Column("guideline", right=False), Column("speed"), Column(names.SPREAD), Column("relative error", 1),
    ])  # fmt: skip

    def lines(text: str, style: str = "", indent: str = "  ") -> list[Text]:
        broken = textwrap.wrap(text, words, initial_indent=indent, subsequent_indent=indent + "  " * bool(style))
        return [Text(line, style) for line in broken]

    for f in findings:
        *before, last = lines(f.title, "bold", "")
        for line in before:
            grid.add({"guideline": line})
        grid.add({"guideline": last, "speed": Text(f.unit if f.ways else "", "bold")})
        for line in lines(f.paper):
            line.stylize("dim")
            grid.add({"guideline": line})
        for way in f.ways:
            *before, last = lines(way.label, "none")
            for line in before:
                grid.add({"guideline": line})
            grid.add({
                "guideline": last, "speed": gflops_text(way.figure), names.SPREAD: scatter_text(way.seconds),
                "relative error": f"{way.error:.1e}" if way.error else "",
            })  # fmt: skip
        for line in lines(f"{f.verdict}: {ratio_text(f)}" if ratio_text(f) else f.verdict, STYLES.get(f.verdict, "dim")):
            grid.add({"guideline": line})
        grid.add({})
    return grid


def ratio_text(finding: Finding) -> str:
    """Return the ratio that a verdict rests on; where nothing was measured, the reason."""
    if not finding.ways or finding.speed is None:
        return finding.reason
    good, other, s = finding.ways[finding.advised], finding.ways[finding.against], finding.speed
    return f"{good.label} against {other.label}: {s.value:.2f} × ({s.low:.2f} to {s.high:.2f})"
