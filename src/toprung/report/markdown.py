"""Tables in Markdown files, generated from stored records between two markers, so that no figure is ever typed.

A marker names what to show and the records it comes from, relative to the repository::

    <!-- toprung:ladder [sizes=1024,4096] results/<device>/<record>.json … -->
    <!-- toprung:rung r07 results/<device>/<record>.json … -->
    <!-- toprung:bench results/<device>/<record>.json -->
    <!-- toprung:probe ffma_chain,ffma_outer results/<device>/<record>.json … -->
    <!-- toprung:loads kepler/r07 results/<device>/<record>.json -->
    <!-- toprung:facts kepler/r07 -->
    <!-- toprung:bound fermi B_R=6 --> and the others of ``report.bound_table``
    <!-- toprung:end -->

``facts`` needs no record: it shows what a rung's own file says; nor does ``bound``, which is computed.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.bounds.registers import Reads
from toprung.errors import BadRecord, UnknownName
from toprung.measure import Measurement
from toprung.probe.store import read as read_probe
from toprung.report.bound_table import MAKERS
from toprung.results import read
from toprung.rung import rung
from toprung.stats import paired_ratio

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
        makers = {"ladder": _ladder, "rung": _rung, "bench": _bench, "facts": _facts, "probe": _probe, "loads": _loads, **MAKERS}
        what, words = match["what"], match["words"].split()
        if what not in makers:
            raise UnknownName("generated table", what, makers)
        return f"{match[1]}{makers[what](words, root)}\n{match[5]}"

    return BLOCK.sub(table, text)


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


def _probe(words: Sequence[str], root: Path) -> str:
    """Microbenchmarks of ``toprung probe``: every case, a column a record."""
    names, *paths = words
    if not paths:
        return "Not measured yet."
    records = [read_probe(root / p) for p in paths]
    rows: dict[tuple[str, str, str], list[Mapping[str, Any] | None]] = {}
    for i, record in enumerate(records):
        for one in record["probe"]:
            if one["benchmark"] in names.split(","):
                rows.setdefault((one["title"], one["label"], one["unit"]), [None] * len(records))[i] = one
    if not rows:
        raise BadRecord(f"{' '.join(paths)}: no measurement of {names}")
    runtimes = [r["environment"]["device"]["backend"] for r in records]
    heads = ["what", "case", "unit", *runtimes, "vendor", "% of it", "MHz", "W"]
    counted = any(f and f.get("reads") for found in rows.values() for f in found)
    heads += ["registers", "read by an FFMA", "bank conflicts, % of FFMA"] * counted
    lines = ["| " + " | ".join(heads) + " |", "|---|---|---|" + "---:|" * (len(heads) - 3)]
    for (title, label, unit), found in rows.items():
        first = next(f for f in found if f)
        values = [gflops_text(f["value"]) if f and f["value"] else "–" for f in found]
        clocks = [c for c in first["clocks_mhz"] if c]
        more = (
            gflops_text(first["vendor"]) if first["vendor"] else "–",
            f"{100 * first['value'] / first['vendor']:.1f}" if first["vendor"] and first["value"] else "–",
            f"{statistics.median(clocks):.0f}" if clocks else "–",
            f"{first['watts']:.0f}" if first["watts"] else "–",
        )
        reads = Reads(**first["reads"]) if first.get("reads") else None
        registers: tuple[str, ...] = ("–", "–", "–") if counted else ()
        if reads:
            conflicts = 100 * reads.conflicts_each
            registers = (str(first["registers"]), f"{reads.reads_each:.2f}", f"{conflicts:.1f}")
        lines.append("| " + " | ".join((title, label, unit, *values, *more, *registers)) + " |")
    return "\n".join([*lines, "", *(_made(p, r) for p, r in zip(paths, records, strict=True))])


def _loads(words: Sequence[str], root: Path) -> str:
    """A rung compiled in the process beside its machine code from a file, of ``toprung run --both``."""
    name, *paths = words
    if not paths:
        return "Not measured yet."
    lines = [
        "| rung | code | size | ms | GFLOP/s | speed / compiled here, 95 % interval | load, ms |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    records = [read(root / p) for p in paths]
    for path, record in zip(paths, records, strict=True):
        own = [m for m in record["measurements"] if m.competitor["name"] == name]
        if len(own) != 2:
            raise BadRecord(f"{path} does not hold {name} in two forms: toprung run {name} --both")
        ratio = paired_ratio(own[0].seconds, own[1].seconds)
        loads = {one["label"]: statistics.median(one["load_seconds"]) for one in record["loads"]}
        for m in own:
            label = m.competitor["variant"]
            against = "1" if m is own[0] else f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"
            cells = (name, label, size_of(m), f"{m.median * 1e3:.3g}", gflops_text(m.figure), against, f"{1e3 * loads[label]:.3g}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(_source(p, r) for p, r in zip(paths, records, strict=True))])


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
    return _made(path, record, f"{_unit(record)}, medians")


def _made(path: str, record: dict[str, Any], what: str = "Medians") -> str:
    """The same for whatever has units of its own."""
    e, device = record["environment"], record["environment"]["device"]
    return (
        f"{what}: {device['short_name']}, {device['runtime']}, driver {device['driver']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "
    )
