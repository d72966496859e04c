"""Tables in Markdown files, generated from stored records between two markers, so that no figure is ever typed.

A marker names what to show and the records it comes from, relative to the repository::

    <!-- toprung:ladder results/<device>/<record>.json … -->
    <!-- toprung:rung r07 results/<device>/<record>.json … -->
    <!-- toprung:end -->
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord, UnknownName
from toprung.measure import Measurement
from toprung.results import read

BLOCK = re.compile(r"(<!-- toprung:(?!end)(?P<what>\w+) (?P<words>[^>]*?) -->\n)(?P<body>.*?)(<!-- toprung:end -->)", re.DOTALL)


def refresh(text: str, root: Path) -> str:
    """``text`` with every generated table made anew.

    Raises
    ------
    BadRecord
        a record that is missing or damaged
    UnknownName
        a marker for a table that does not exist
    """

    def table(match: re.Match[str]) -> str:
        makers = {"ladder": _ladder, "rung": _rung}
        what, words = match["what"], match["words"].split()
        if what not in makers:
            raise UnknownName("generated table", what, makers)
        return f"{match[1]}{makers[what](words, root)}\n{match[5]}"

    return BLOCK.sub(table, text)


def _ladder(words: Sequence[str], root: Path) -> str:
    """GFLOP/s of every rung over the sizes, a column a size and record; the best of ours in bold."""
    records = [read(root / w) for w in words]
    columns: list[tuple[int, str]] = []
    cells: dict[tuple[tuple[int, str], tuple[int, str]], Measurement] = {}
    rows: dict[tuple[int, str], str] = {}
    for i, record in enumerate(records):
        for m in record["measurements"]:
            column = (i, size_of(m))
            if column not in columns:
                columns.append(column)
            row = (m.competitor["number"], m.competitor["variant"])
            rows[row] = m.competitor["idea"] if row[0] or len(records) == 1 else _merged(rows.get(row), m.competitor["idea"])
            cells[row, column] = m
    best = {c: max((m.gflops for (r, d), m in cells.items() if d == c and r[0]), default=0.0) for c in columns}
    runtimes = [r["environment"]["device"]["backend"] for r in records]
    heads = [size if len(records) == 1 else f"{runtimes[i]} {size}" for i, size in columns]
    lines = ["| rung | idea | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
    for row in sorted(rows):
        number, variant = row
        values = []
        for column in columns:
            m = cells.get((row, column))
            figure = "–" if m is None else gflops_text(m.gflops)
            values.append(f"**{figure}**" if m is not None and number and m.gflops == best[column] else figure)
        idea = f"`{variant}`" if variant else rows[row]
        lines.append(f"| {number} | {idea} | " + " | ".join(values) + " |")
    return "\n".join([*lines, "", *(_source(w, r) for w, r in zip(words, records, strict=True))])


def _rung(words: Sequence[str], root: Path) -> str:
    """One rung in every record: time, GFLOP/s, against its predecessor and the vendor, share of layout work, error."""
    stem, *paths = words
    number = int(stem[1:3])
    lines = [
        "| device | size | switches | tile | ms | GFLOP/s | × previous rung | % of vendor | layout | grade |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    records = [read(root / p) for p in paths]
    for path, record in zip(paths, records, strict=True):
        measurements: list[Measurement] = record["measurements"]
        own = [m for m in measurements if m.competitor["number"] == number]
        if not own:
            raise BadRecord(f"{path} holds no measurement of rung {number}")
        for m in own:
            who, same = m.competitor, [o for o in measurements if size_of(o) == size_of(m)]
            before = [o for o in same if 0 < o.competitor["number"] < number and not o.competitor["variant"]]
            vendor = [o for o in same if o.competitor["number"] == 0]
            device = record["environment"]["device"]
            tile = " ".join(f"{k}={v}" for k, v in who["tile"].items())
            cells = (
                f"{device['short_name']}, {device['backend']}", size_of(m), who["variant"] or "–", tile, f"{m.median * 1e3:.3g}",
                gflops_text(m.gflops), f"{m.gflops / before[-1].gflops:.2f}" if before else "–",
                f"{100 * m.gflops / vendor[0].gflops:.1f}" if vendor else "–",
                f"{100 * m.helpers:.0f} %" if m.helpers else "–", f"{m.verdict['grade']:.2g}",
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(_source(p, r) for p, r in zip(paths, records, strict=True))])


def size_of(m: Measurement) -> str:
    """A problem's size as a person writes it."""
    sizes = [m.problem[k] for k in "MNK" if k in m.problem]
    return str(sizes[0]) if len(set(sizes)) == 1 else "×".join(map(str, sizes))


def gflops_text(value: float) -> str:
    """GFLOP/s with three digits, more where they are whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _merged(old: str | None, new: str) -> str:
    return new if old is None or old == new else f"{old} / {new}"


def _source(path: str, record: dict[str, Any]) -> str:
    """Where the figures come from."""
    e, device = record["environment"], record["environment"]["device"]
    return (
        f"GFLOP/s, medians: {device['short_name']}, {device['runtime']}, driver {device['driver']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "
    )
