"""Tables in Markdown files, generated from stored records between two markers, so that no figure is ever typed.

A marker names what to show and the records it comes from, relative to the repository::

    <!-- toprung:ladder [sizes=1024,4096] results/<device>/<record>.json … -->
    <!-- toprung:rung r07 results/<device>/<record>.json … -->
    <!-- toprung:each results/<device>/<record>.json … -->
    <!-- toprung:bench results/<device>/<record>.json -->
    <!-- toprung:counters results/<device>/<record>.json -->
    <!-- toprung:probe ffma_chain,ffma_outer results/<device>/<record>.json … -->
    <!-- toprung:loads kepler/r07 results/<device>/<record>.json -->
    <!-- toprung:overhead results/<device>/overhead.json … -->
    <!-- toprung:library results/<device>/library.json … -->
    <!-- toprung:rank results/<device>/rank.json results/<device>/probe-<backend>.json -->
    <!-- toprung:leads [run=7] results/<device>/<record>.json -->
    <!-- toprung:facts kepler/r07 -->
    <!-- toprung:guidelines [NAME] results/<device>/<record>.json … -->
    <!-- toprung:fp32x grade|frobenius|accuracy|sustained|burst|matmul|slices results/<folder>/<record>.json -->
    <!-- toprung:hopper_fp32 sustained|shapes|tried|counters results/<device>/<record>.json -->
    <!-- toprung:tune search|run|check|routes|exhaustive|library results/<device>/<record>.json -->
    <!-- toprung:bound fermi B_R=6 --> and the others of ``report.bound_table``
    <!-- toprung:end -->

``facts`` needs no record: it shows what a rung's own file says; nor does ``bound``, which is computed. A record whose name ends
in ``?`` may be missing: a block without any says that nothing has been measured yet.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.bandwidth import Bandwidth
from toprung.bounds.registers import Reads
from toprung.errors import BadRecord, UnknownName
from toprung.measure import Measurement
from toprung.probe.store import read as read_probe
from toprung.report.bound_table import MAKERS
from toprung.results import read
from toprung.routines.base import method
from toprung.rung import rung
from toprung.stats import paired_ratio

BLOCK = re.compile(r"(<!-- toprung:(?!end)(?P<what>\w+) (?P<words>[^>]*?) ?-->\n)(?P<body>.*?)(<!-- toprung:end -->)", re.DOTALL)
NOTHING = "Not measured yet."


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
        from toprung.report import (
            counters,
            findings,
            fp32x,
            hopper_fp32,
            leads,
            library,
            rank,
            tune_table,
        )  # which use what is below

        makers = {
            "ladder": _ladder, "rung": _rung, "each": _each, "bench": _bench, "facts": _facts, "probe": _probe, "loads": _loads,
            "overhead": _overhead, "guidelines": findings.block, "counters": counters.block, "fp32x": fp32x.block,
            "hopper_fp32": hopper_fp32.block, "leads": leads.block, "library": library.block, "rank": rank.block,
            "tune": tune_table.block, **MAKERS,
        }  # fmt: skip
        what, given = match["what"], match["words"].split()
        words = [w.removesuffix("?") for w in given if not w.endswith("?") or (root / w[:-1]).exists()]
        if what not in makers:
            raise UnknownName("generated table", what, makers)
        body = makers[what](words, root) if len(words) == len(given) or any(w.endswith(".json") for w in words) else NOTHING
        return f"{match[1]}{body}\n{match[5]}"

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
    """The speed of every rung over the sizes, a column a size and record; the best of ours in bold.

    A rung on narrowed operands is shown without its helpers, as its vendor is. In brackets the share of the limit: of the fp32 peak
    at the clock that was read, or of the read bandwidth measured in the same run; where that was measured, a last column gives the
    share of the copy bandwidth at the largest size.
    """
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
            row = (m.competitor["number"], m.competitor["variant"] or _which(m, record))
            rows[row] = m.competitor["idea"] if row[0] or len(records) == 1 else _merged(rows.get(row), m.competitor["idea"])
            cells[row, column] = m
    best = {c: max((_shown(m) for (r, d), m in cells.items() if d == c and r[0]), default=0.0) for c in columns}
    runtimes = [r["environment"]["device"]["backend"] for r in records]
    heads = [size if len(records) == 1 else f"{runtimes[i]} {size}" for i, size in columns]
    limits = [Limits.of(r) for r in records]
    largest = {i: max((m for (_, d), m in cells.items() if d[0] == i), key=lambda m: m.min_bytes, default=None) for i, _ in columns}
    copied = [(i, size_of(m)) for i, m in largest.items() if m and limits[i].memory]
    heads += ["% of copy, " + heads[columns.index(c)] for c in copied]
    lines = ["| rung | idea | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
    for row in sorted(rows):
        number, variant = row
        values = []
        for column in columns:
            m = cells.get((row, column))
            figure = "–" if m is None else gflops_text(_shown(m))
            figure = f"**{figure}**" if m is not None and number and _shown(m) == best[column] else figure
            share = limits[column[0]].share(m) if m else None
            values.append(f"{figure} ({100 * share:.1f} %)" if share else figure)
        for column in copied:
            memory, m = limits[column[0]].memory, cells.get((row, column))
            values.append(f"{100 * m.figure / memory.copy.gbytes_per_s:.1f}" if m and memory else "–")
        idea = f"`{variant}`" if number and variant else rows[row]
        lines.append(f"| {number} | {idea} | " + " | ".join(values) + " |")
    sources = [
        " ".join(filter(None, (_source(w, r).rstrip(), _said(lim, r)))) + "  "
        for w, r, lim in zip(words, records, limits, strict=True)
    ]
    return "\n".join([*lines, "", *sources])


def _rung(words: Sequence[str], root: Path) -> str:
    """One rung in every record: time, speed, against its predecessor and the vendor, share of layout work, error."""
    stem, *paths = words
    if not paths:
        return NOTHING
    number = int(stem[1:3])
    records = [read(root / p) for p in paths]
    limits = [Limits.of(r) for r in records]
    shares = list(dict.fromkeys(name for limit, r in zip(limits, records, strict=True) for name in limit.names(r)))
    apart = any(m.units for r in records for m in r["measurements"] if m.competitor["number"] == number)
    more = ["without layout"] * apart + shares
    lines = [
        f"| device | size | switches | tile | ms | {_unit(*records)} | × previous rung | % of vendor | "
        + "".join(f"{name} | " for name in more) + "registers | layout | grade |",
        "|---|---|---|---|---:|---:|---:|---:|" + "---:|" * (len(more) + 3),
    ]  # fmt: skip
    for path, record, limit in zip(paths, records, limits, strict=True):
        measurements: list[Measurement] = record["measurements"]
        own = [m for m in measurements if m.competitor["number"] == number]
        if not own:
            raise BadRecord(f"{path} holds no measurement of rung {number}")
        for m in own:
            who, same = m.competitor, [o for o in measurements if size_of(o) == size_of(m)]
            before = [o for o in same if 0 < o.competitor["number"] < number and not o.competitor["variant"]]
            vendor = m.rival(same)
            device = record["environment"]["device"]
            tile = " ".join(f"{k}={v}" for k, v in who["tile"].items())
            cells = (
                f"{device['short_name']}, {device['backend']}", size_of(m), who["variant"] or "–", tile, f"{m.median * 1e3:.3g}",
                gflops_text(m.figure), f"{_shown(m) / _shown(before[-1]):.2f}" if before else "–",
                f"{100 * m.share_of(vendor):.1f}" if vendor else "–", *[gflops_text(m.alone)] * apart,
                *(f"{100 * s:.1f}" if (s := limit.shares(m).get(name)) else "–" for name in shares),
                str(who.get("resources", {}).get("registers") or "–"),
                f"{100 * m.helpers:.0f} %" if m.helpers else "–", f"{m.verdict['grade']:.2g}",
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(_source(p, r) for p, r in zip(paths, records, strict=True))])


def _each(words: Sequence[str], root: Path) -> str:
    """By marks around each call against marks around the loop: microseconds by the loop, and how much the other way adds."""
    if not words:
        return NOTHING
    parts = []
    for word in words:
        record = read(root / word)
        both = [m for m in record["measurements"] if m.each is not None]
        if not both:
            raise BadRecord(f"{word} holds no samples by marks around each call: measure with --each-launch")
        sizes = list(dict.fromkeys(size_of(m) for m in both))
        lines = ["| rung | idea | " + " | ".join(sizes) + " |", "|---|---|" + "---:|" * len(sizes)]
        for label in dict.fromkeys((m.competitor["number"], m.competitor["variant"]) for m in both):
            own = {size_of(m): m for m in both if (m.competitor["number"], m.competitor["variant"]) == label}
            who = next(iter(own.values())).competitor
            cells = [each_text(own[s]) if s in own else "–" for s in sizes]
            lines.append(f"| {label[0]} | {f'`{label[1]}`' if label[1] else who['idea']} | " + " | ".join(cells) + " |")
        parts.append("\n".join([*lines, "", _source(word, record, "µs a call by the loop, and what marks around each call add")]))
    return "\n\n".join(parts)


def each_text(m: Measurement) -> str:
    """Microseconds a call by marks around the loop, and what marks around each call add to it."""
    return f"{gflops_text(1e6 * m.median)} ({100 * ((m.each or math.nan) / m.median - 1):+.1f} %)"


@dataclass(frozen=True)
class Limits:
    """What a record's figures are held against: the fp32 peak at each clock, or what memory gave in the same run."""

    gflops_per_mhz: float | None = None
    memory: Bandwidth | None = None

    @staticmethod
    def of(record: Mapping[str, Any]) -> Limits:
        """Those of a record."""
        device = record["environment"]["device"]
        peak, clock = device.get("peak_gflops"), device.get("clock_mhz")
        return Limits(peak / clock if peak and clock else None, Bandwidth.of(record))

    def shares(self, m: Measurement) -> dict[str, float]:
        """Shares of what is known, by the name of their column; none of the fp32 peak for what computes otherwise."""
        if m.units:
            return {}
        if m.measured_in == "GFLOP/s":
            share = m.share_of_peak(self.gflops_per_mhz)
            return {} if share is None else {"% of peak": share}
        if not self.memory:
            return {}
        return {"% of read": m.figure / self.memory.read.gbytes_per_s, "% of copy": m.figure / self.memory.copy.gbytes_per_s}

    def share(self, m: Measurement) -> float | None:
        """The first of them: what stands in brackets behind a figure."""
        return next(iter(self.shares(m).values()), None)

    def names(self, record: Mapping[str, Any]) -> list[str]:
        """The columns that a record's measurements need."""
        return list(dict.fromkeys(name for m in record["measurements"] for name in self.shares(m)))


def _which(m: Measurement, record: Mapping[str, Any]) -> str:
    """The name of a vendor that is not the only one of a record."""
    who = m.competitor
    several = who["number"] == 0 and len({o.competitor["name"] for o in record["measurements"] if not o.competitor["number"]}) > 1
    return str(who["name"]) if several else ""


def _shown(m: Measurement) -> float:
    """What a table of a ladder shows: without helpers where operands are narrowed."""
    return m.alone if m.narrow else m.figure


def _said(limits: Limits, record: Mapping[str, Any]) -> str:
    """What stands in brackets."""
    if "% of read" in (names := limits.names(record)):
        assert limits.memory
        return f"In brackets: share of the read bandwidth, measured in the same run ({limits.memory})."
    return "In brackets: share of the fp32 peak at the clock that was read." if names else ""


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
        cells = [_with_host(own[c]) if c in own else "–" for c in columns]
        error = f"{last.verdict['frobenius']:.2e}"
        lines.append(f"| {name} | {last.competitor['precision']} | " + " | ".join(cells) + f" | {error} |")
    if any(m.host for m in measurements):
        lines += ["", "In brackets: µs that the host takes to put a call into the queue, the least.  "]
    else:
        lines.append("")
    return "\n".join([*lines, _source(words[0], record)])


def _with_host(m: Measurement) -> str:
    """The speed, and the host's microseconds where they are known."""
    return gflops_text(m.figure) + (f" ({1e6 * m.host:.1f})" if m.host else "")


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
    return "\n".join([*lines, "", *(source_line(p, r) for p, r in zip(paths, records, strict=True))])


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
        items = f"{tile.DN} × {tile.DM} = {tile.work_items}" + f", and {found.more_items}" * bool(found.more_items)
        lines.append(f"| {name} | {parameters} | {items} | {local} |")
    defaults = {s.name: s.default for s in found.switches}
    demands = [f"{', '.join(whole)} as whole tiles"] if (whole := found.whole_operands(defaults)) else []
    demands += [f"{', '.join(found.transposed)} transposed"] if found.transposed else []
    demands += [brings] if (brings := getattr(method(found), "BRINGS", "")) else []
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


def _source(path: str, record: dict[str, Any], what: str = "") -> str:
    """Where the figures come from."""
    return source_line(path, record, f"{what or _unit(record)}, medians")


def source_line(path: str, record: dict[str, Any], what: str = "Medians") -> str:
    """Where figures come from that have units of their own."""
    e, device = record["environment"], record["environment"]["device"]
    return (
        f"{what}: {device['short_name']}, {device['runtime']}, driver {device['driver']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "
    )
