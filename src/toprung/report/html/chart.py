"""A chart of the report, and the colours that all share."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from toprung.lab.harness.measure import Measurement
from toprung.report.html.gather import Stored

Row = Mapping[str, Any]
Spec = dict[str, Any]

PALETTE: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "light": {
        "page": "#ffffff", "card": "#f6f7f9", "line": "#d5d9df", "fg": "#1b1f24", "muted": "#59636e", "grid": "#e3e6ea",
        "link": "#0a58b0", "ours": "#0072b2", "room": "#cfe3f1", "ceiling": "#b35c00", "vendor": "#1b1f24", "peak": "#757d86",
        "seq0": "#a9cfe8", "seq1": "#08305c", "add": "#dff3e6", "del": "#fde3dc", "slower": "#b8390e", "faster": "#007a5a",
        "c0": "#0072b2", "c1": "#d55e00", "c2": "#008a66", "c3": "#b85f94", "c4": "#a87400", "c5": "#3b9ad1", "c6": "#6b6b6b",
        "c7": "#5b3fa8", "keyword": "#8a2be2", "type": "#0a58b0", "text": "#0b6e4f", "comment": "#59636e", "pre": "#a34700",
    },
    "dark": {
        "page": "#12161b", "card": "#1a2027", "line": "#36404b", "fg": "#e8ecf1", "muted": "#a3aebb", "grid": "#2a323c",
        "link": "#7cb8f2", "ours": "#56a8e0", "room": "#1f3a50", "ceiling": "#f0a040", "vendor": "#e8ecf1", "peak": "#8f9aa6",
        "seq0": "#2f5f86", "seq1": "#d6ecff", "add": "#143626", "del": "#47211a", "slower": "#ff8a65", "faster": "#4fd1a5",
        "c0": "#56a8e0", "c1": "#ff8c42", "c2": "#3fc79a", "c3": "#e39ac4", "c4": "#e5b94b", "c5": "#9ad4f5", "c6": "#b0b0b0",
        "c7": "#b39dff", "keyword": "#c9a2ff", "type": "#7cb8f2", "text": "#7fd8b4", "comment": "#a3aebb", "pre": "#f0a978",
    },
})  # fmt: skip
"""Colours by name for both schemes; the categories are Okabe and Ito's, which colour-blind people tell apart, made darker or
lighter until they stand out from the page. A specification names one as ``@ours``."""

CATEGORIES = tuple(f"@c{i}" for i in range(8))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


@dataclass(frozen=True)
class Column:
    """A column of a chart's table, and a line of what is shown on hover; ``format`` is d3's, empty for a text."""

    key: str
    title: str
    format: str = ""
    hover: bool = True

    def text(self, row: Row) -> str:
        """A cell."""
        value = row.get(self.key)
        if value is None or value == "":
            return "–"
        if isinstance(value, int | float) and self.format:
            return format(value, self.format.replace(".3~s", ",.4g"))
        return str(value)


@dataclass(frozen=True)
class Chart:
    """A plot with all that belongs to it.

    Attributes
    ----------
    ident : its name in the page's addresses
    said : what is seen
    spec : Vega-Lite without data
    rows : its data; ``view`` of a row is the choice it belongs to
    columns : of its table
    choice : what ``view`` chooses
    sources : where the rows of a view come from, a sentence each
    first : the view that is shown first
    empty : the command that makes what is missing where there are no rows
    short : its title in a word
    """

    ident: str
    title: str
    said: str
    spec: Spec
    rows: Sequence[Row]
    columns: Sequence[Column]
    choice: str = ""
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first: str = ""
    empty: str = ""
    short: str = ""

    @property
    def views(self) -> list[str]:
        """Views that may be chosen, in order."""
        return list(dict.fromkeys(str(r["view"]) for r in self.rows))

    @property
    def shown(self) -> str:
        """The view that is shown first."""
        return self.first if self.first in self.views else next(iter(self.views), "")

    @property
    def table(self) -> list[Row]:
        """The rows of its table: those that are measurements, not lines to go by."""
        return [r for r in self.rows if not r.get("guide")]


def tooltip(columns: Iterable[Column]) -> list[Spec]:
    """Return what Vega-Lite shows on hover."""
    return [
        {"field": c.key, "title": c.title, **({"format": c.format, "type": "quantitative"} if c.format else {"type": "nominal"})}
        for c in columns
        if c.hover and c.key != "view"
    ]


def source(stored: Stored, of: Sequence[Measurement] = ()) -> str:
    """Return where figures come from and how they came about: device, runtime, driver, clocks, date, commit, command, file."""
    device = stored.device
    clocks = [c for m in of for c in m.clocks_mhz if c]
    ran = "clocks not read"
    if clocks:
        low, high = min(clocks), max(clocks)
        ran = f"at {low:.0f} MHz" if low == high else f"at {low:.0f} to {high:.0f} MHz (median {statistics.median(clocks):.0f})"
    samples = sorted({len(m.seconds) for m in of})
    counted = f"medians of {' or '.join(map(str, samples))} samples {ran}, " if samples else ""
    return (
        f"{stored.name}: {device['short_name']}, {device['runtime']}, driver {device['driver']}, {counted}{stored.date[:10]}, "
        f"commit {stored.commit or 'unknown'}"
    )


def sources(used: Mapping[str, Sequence[tuple[Stored, Measurement]]]) -> dict[str, list[str]]:
    """Return ``source`` for each view, a line a record."""
    found = {}
    for view, taken in used.items():
        by: dict[str, tuple[Stored, list[Measurement]]] = {}
        for stored, m in taken:
            by.setdefault(stored.name, (stored, []))[1].append(m)
        found[view] = [source(*by[name]) for name in sorted(by)]
    return found
