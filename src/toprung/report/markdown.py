"""Tables in Markdown files, generated from stored records between two markers, so that no figure is ever typed.

A marker names what to show and the records it comes from, relative to the repository::

    <!-- toprung:ladder [sizes=1024,4096] results/<device>/<record>.json … -->
    <!-- toprung:rung r07 results/<device>/<record>.json … -->
    <!-- toprung:bench results/<device>/<record>.json -->
    <!-- toprung:overhead results/<device>/overhead.json … -->
    <!-- toprung:facts kepler/r07 -->
    <!-- toprung:end -->

``facts`` needs no record: it shows what a rung's own file says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord, UnknownName
from toprung.measure import Measurement
from toprung.results import read
from toprung.rung import rung

BLOCK = re.compile(r"(<!-- toprung:(?!end)(?P<what>\w+) (?P<words>[^>]*?) -->\n)(?P<body>.*?)(<!-- toprung:end -->)", re.DOTALL)


def refresh(text: str, root: Path) -> str:
    """``text`` with every generated table made anew.

    Raises
    ------
    BadRecord
        a record that is missing or damaged
    UnknownName
        a marker for a table or a rung that does not exist
    """

    def table(match: re.Match[str]) -> str:
        makers = {"ladder": _ladder, "rung": _rung, "bench": _bench, "facts": _facts, "overhead": _overhead}
        what, words = match["what"], match["words"].split()
        if what not in makers:
            raise UnknownName("generated table", what, makers)
        return f"{match[1]}{makers[what](words, root)}\n{match[5]}"

    return BLOCK.sub(table, text)


def _overhead(words: Sequence[str], root: Path) -> str:
    """What calls of the library cost on the host, a row for each kind of array and call; from benchmarks/overhead.py."""
    if not words:
        return "Not measured yet."
    lines = ["| device | arrays | call | µs |", "|---|---|---|---:|"]
    sources = []
    for word in words:
        record = read(root / word)
        e, device = record["environment"], record["environment"]["device"]
        for row in record["overheads"]:
            lines.append(f"| {device['short_name']} | {row['arrays']} | `{row['call']}` | {row['microseconds']['median']:.1f} |")
        sources.append(
            f"Microseconds of a call on the host, medians: {device['short_name']}, {device['runtime']}, Python {e['python']}, "
            f"{e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{word}`.  "
        )
    return "\n".join([*lines, "", *sources])


def _ladder(words: Sequence[str], root: Path) -> str:
    """The speed of every rung over the sizes, a column a size and record; the best of ours in bold."""
    chosen = {size for w in words if w.startswith("sizes=") for size in w.removeprefix("sizes=").split(",")}
    words = [w for w in words if not w.startswith("sizes=")]
    records = [read(root / w) for w in words]
    columns: list[tuple[int, str]] = []
    cells: dict[tuple[tuple[int, str], tuple[int, str]], Measurement] = {}
    rows: dict[tuple[int, str], str] = {}
    for i, record in enumerate(records):
        for m in record["measurements"]:
            column = (i, size_of(m))
            if chosen and column[1] not in chosen:
                continue
            if column not in columns:
                columns.append(column)
            row = (m.competitor["number"], m.competitor["variant"])
            rows[row] = m.competitor["idea"] if row[0] or len(records) == 1 else _merged(rows.get(row), m.competitor["idea"])
            cells[row, column] = m
    best = {c: max((m.figure for (r, d), m in cells.items() if d == c and r[0]), default=0.0) for c in columns}
    runtimes = [r["environment"]["device"]["backend"] for r in records]
    heads = [size if len(records) == 1 else f"{runtimes[i]} {size}" for i, size in columns]
    lines = ["| rung | idea | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
    for row in sorted(rows):
        number, variant = row
        values = []
        for column in columns:
            m = cells.get((row, column))
            figure = "–" if m is None else gflops_text(m.figure)
            values.append(f"**{figure}**" if m is not None and number and m.figure == best[column] else figure)
        idea = f"`{variant}`" if variant else rows[row]
        lines.append(f"| {number} | {idea} | " + " | ".join(values) + " |")
    return "\n".join([*lines, "", *(_source(w, r) for w, r in zip(words, records, strict=True))])


def _rung(words: Sequence[str], root: Path) -> str:
    """One rung in every record: time, speed, against its predecessor and the vendor, share of layout work, error."""
    stem, *paths = words
    if not paths:
        return "Not measured yet."
    number = int(stem[1:3])
    records = [read(root / p) for p in paths]
    lines = [
        f"| device | size | switches | tile | ms | {_unit(*records)} | × previous rung | % of vendor | "
        "registers | layout | grade |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
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
                gflops_text(m.figure), f"{m.figure / before[-1].figure:.2f}" if before else "–",
                f"{100 * m.figure / vendor[0].figure:.1f}" if vendor else "–",
                str(who.get("resources", {}).get("registers") or "–"),
                f"{100 * m.helpers:.0f} %" if m.helpers else "–", f"{m.verdict['grade']:.2g}",
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(_source(p, r) for p, r in zip(paths, records, strict=True))])


def _bench(words: Sequence[str], root: Path) -> str:
    """A record of ``toprung bench``: everybody's speed over the sizes, and the Frobenius error at the last."""
    record = read(root / words[0])
    measurements: list[Measurement] = record["measurements"]
    columns = list(dict.fromkeys((size_of(m), m.mode) for m in measurements))
    heads = [size if mode == "warm" else f"{size} {mode}" for size, mode in columns]
    lines = ["| who | precision | " + " | ".join(heads) + " | Frobenius error |", "|---|---|" + "---:|" * (len(heads) + 1)]
    for name in dict.fromkeys(m.competitor["name"] for m in measurements):
        own = {(size_of(m), m.mode): m for m in measurements if m.competitor["name"] == name}
        last = list(own.values())[-1]
        cells = [gflops_text(own[c].figure) if c in own else "–" for c in columns]
        error = f"{last.verdict['frobenius']:.2e}"
        lines.append(f"| {name} | {last.competitor['precision']} | " + " | ".join(cells) + f" | {error} |")
    return "\n".join([*lines, "", _source(words[0], record)])


def _facts(words: Sequence[str], root: Path) -> str:
    """What a rung's record promises and demands: prediction, tiles, operands, legality, switches."""
    found = rung(*words)
    tiles = [(k.upper() + ", else" * (i > 0), t) for k, choices in found.tiles.items() for i, t in enumerate(choices)]
    tiles += [("published", found.published)] if found.published else []
    lines = [f"Predicted: {found.expects}.", "", "| tile for | parameters | work-group | local memory |", "|---|---|---:|---:|"]
    for name, tile in tiles:
        parameters = " ".join(f"{k}={v}" for k, v in tile.given().items())
        local = f"{used / 1024:g} KiB" if (used := found.local_bytes(tile)) else "none"
        lines.append(f"| {name} | {parameters} | {tile.DN} × {tile.DM} = {tile.work_items} | {local} |")
    defaults = {s.name: s.default for s in found.switches}
    demands = [f"{', '.join(whole)} as whole tiles"] if (whole := found.whole_operands(defaults)) else []
    demands += [f"{', '.join(found.transposed)} transposed"] if found.transposed else []
    lines += ["", f"Helpers bring: {' and '.join(demands) or 'nothing'}.  "]
    rules = [f"`{r.name}` ({r.why})" for r in found.rules]
    lines.append(f"Legal, beyond the rules common to all tiles: {'; '.join(rules) or 'nothing more'}.  ")
    lines += [""] * bool(found.switches)
    for s in found.switches:
        values = ", ".join(map(str, s.values))
        lines.append(f"- `{s.name}` ({values}; the first is the default): {s.idea}")
    return "\n".join(lines)


def size_of(m: Measurement) -> str:
    """A problem's size as a person writes it."""
    sizes = [m.problem[k] for k in "MNK" if k in m.problem]
    trans = m.problem.get("trans", "N")
    return (str(sizes[0]) if len(set(sizes)) == 1 else "×".join(map(str, sizes))) + (f" {trans}" if "T" in trans else "")


def gflops_text(value: float) -> str:
    """A speed with three digits, more where they are whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _merged(old: str | None, new: str) -> str:
    return new if old is None or old == new else f"{old} / {new}"


def _unit(*records: dict[str, Any]) -> str:
    """What the records' figures are given in."""
    units = {m.measured_in for r in records for m in r["measurements"]}
    return " or ".join(sorted(units)) or "GFLOP/s"


def _source(path: str, record: dict[str, Any]) -> str:
    """Where the figures come from."""
    e, device = record["environment"], record["environment"]["device"]
    return (
        f"{_unit(record)}, medians: {device['short_name']}, {device['runtime']}, driver {device['driver']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "
    )
