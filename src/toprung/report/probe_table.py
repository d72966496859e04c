"""Outcome of a probe: a table on the terminal."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from toprung.report import names
from toprung.report.grid import Column, Grid
from toprung.report.text import scatter_text

WORDS, SHORT = 34, 8
"""Cells of a line of a title at most, and of a unit that stands beside the figure; a longer unit stands with the title."""


def probe_table(entries: Sequence[Mapping[str, Any]], title: str) -> Grid:
    """Return every case that was measured, beside the vendor's figure; ``entries`` as a probe's record has them."""
    columns = [
        Column("what", right=False), Column("measured"), Column("unit", right=False), Column(names.SPREAD), Column("vendor", 1),
        Column(names.VENDOR, 1), Column(names.CLOCK, 2), Column("W", 3),
    ]  # fmt: skip
    grid = Grid(title, columns)
    heading = ""
    for e in entries:
        if e["problem"]:
            continue
        if e["benchmark"] != heading:
            heading = e["benchmark"]
            unit = "" if len(e["unit"]) <= SHORT else f", {e['unit']}"
            for line in textwrap.wrap(e["title"] + unit, WORDS):
                grid.add({"what": Text(line, "bold")})
        value, values, vendor, watts = e["value"], e["values"], e["vendor"], e["watts"]
        clocks = [c for c in e["clocks_mhz"] if c]
        grid.add({
            "what": f"  {e['label']}", "measured": "–" if value is None else _figure(value),
            "unit": e["unit"] if len(e["unit"]) <= SHORT else "",
            names.SPREAD: scatter_text(values),
            "vendor": "" if vendor is None else _figure(vendor),
            names.VENDOR: f"{100 * value / vendor:.1f}" if vendor and value is not None else "",
            names.CLOCK: f"{statistics.median(clocks):.0f}" if clocks else "", "W": f"{watts:.0f}" if watts else "",
        })  # fmt: skip
    return grid


def _figure(value: float) -> str:
    """Return a figure with four digits, more where they are whole."""
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
