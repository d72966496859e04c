"""Tables of a ladder: every rung over the sizes, one rung in every record, and what a rung's file says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables.common import NOTHING, ladder_record, speed_source, unit
from toprung.errors import BadRecord
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import read
from toprung.lab.routines.base import method
from toprung.lab.rung import rung
from toprung.report import names
from toprung.report.bound_table import read_bounds
from toprung.report.text import Limits, gflops_text, scatter_text, size_of


def _ladder(words: Sequence[str], root: Path) -> str:
    """The speed of every rung over the sizes, a column a size and record (``a.json+b.json`` is one); the best of ours in bold.

    A rung on narrowed operands is shown without its helpers, as its vendor is. In brackets the share of the limit: of the fp32 peak
    at the clock that was read, or of the read bandwidth measured in the same run; where that was measured, a last column gives the
    share of the copy bandwidth at the largest size.
    """
    chosen = {size for w in words if w.startswith("sizes=") for size in w.removeprefix("sizes=").split(",")}
    words = [w for w in words if not w.startswith("sizes=")]
    both = [ladder_record(w, root) for w in words]
    records = [record for record, _ in both]
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
        " ".join(filter(None, (speed_source("` and `".join(w.split("+")), r).rstrip(), said, _said(lim, r)))) + "  "
        for w, (r, said), lim in zip(words, both, limits, strict=True)
    ]
    return "\n".join([*lines, "", *sources])


def _rung(words: Sequence[str], root: Path) -> str:
    """One rung in every record: time, speed, against its predecessor and the vendor, share of layout work, error."""
    stem, *paths = words
    if not paths:
        return NOTHING
    number = int(stem[1:3])
    records = [ladder_record(p, root)[0] for p in paths]
    limits = [Limits.of(r) for r in records]
    shares = list(dict.fromkeys(name for limit, r in zip(limits, records, strict=True) for name in limit.names(r)))
    apart = any(m.units for r in records for m in r["measurements"] if m.competitor["number"] == number)
    more = [names.ALONE] * apart + shares
    lines = [
        f"| device | size | switches | tile | {names.MS} | {unit(*records)} | {names.SPREAD} | {names.PREVIOUS} | "
        f"{names.VENDOR} | " + "".join(f"{name} | " for name in more) + f"{names.REGISTERS} | {names.HELPERS} | {names.GRADE} |",
        "|---|---|---|---|---:|---:|---:|---:|---:|" + "---:|" * (len(more) + 3),
    ]  # fmt: skip
    for path, record, limit in zip(paths, records, limits, strict=True):
        measurements: list[Measurement] = record["measurements"]
        own = [m for m in measurements if m.competitor["number"] == number]
        if not own:
            raise BadRecord(f"{path} holds no measurement of rung {number}")
        for m in own:
            who, same = m.competitor, [o for o in measurements if size_of(o) == size_of(m)]
            before = [o for o in same if 0 < o.competitor["number"] < number and not o.competitor["variant"]]
            vendor = m.baseline(same)
            device = record["environment"]["device"]
            tile = " ".join(f"{k}={v}" for k, v in who["tile"].items())
            cells = (
                f"{device['short_name']}, {device['backend']}", size_of(m), who["variant"] or "–", tile, f"{m.median * 1e3:.3g}",
                gflops_text(m.figure), scatter_text(m.seconds), f"{_shown(m) / _shown(before[-1]):.2f}" if before else "–",
                f"{100 * m.share_of(vendor):.1f}" if vendor else "–", *[gflops_text(m.alone)] * apart,
                *(f"{100 * s:.1f}" if (s := limit.shares(m).get(name)) else "–" for name in shares),
                str(who.get("resources", {}).get("registers") or "–"),
                f"{100 * m.helpers:.0f} %" if m.helpers else "–", f"{m.verdict['grade']:.2g}",
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    sources = [speed_source(p, r) for p, r in zip(paths, records, strict=True)]
    return "\n".join([*lines, "", *sources, *_limits_now(paths, own[0], root)])


def _limits_now(paths: Sequence[str], own: Measurement, root: Path) -> list[str]:
    """Say what limits a rung, by the records of bounds beside those of its ladder: ``bounds-<ladder>….json``."""
    ladder, number, said = own.competitor["name"].partition("/")[0], own.competitor["number"], []
    folders = sorted({root / Path(path.partition("+")[0]).parent for path in paths})
    for path in (p for f in folders for ends in ("", "-*") for p in sorted(f.glob(f"bounds-{ladder}{ends}.json"))):
        record = read_bounds(path)
        for b in (b for b in record["bounds"] if b["number"] == number and not b["variant"] and b["bound"]):
            sides = [str(b["problem"][k]) for k in "MNK" if k in b["problem"]]
            size = "×".join(sides if len(set(sides)) > 1 else sides[:1])
            counted = next(level["counted"] for level in b["levels"] if level["name"] == b["limiter"])
            part = f", of which {100 * b['share']:.1f} % are reached" if b["share"] else ""
            said += ["", (
                f"What limits it at {size} on {record['environment']['device']['short_name']}: {b['limiter']} ({counted}). "
                f"The bound is {b['bound']:,.0f} {b['unit']}{part}. Next: {b.get('next', '')}"
            )]  # fmt: skip
    return said


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
        parts.append(
            "\n".join([*lines, "", speed_source(word, record, "µs a call by the loop, and what marks around each call add")])
        )
    return "\n\n".join(parts)


def _sweep(words: Sequence[str], root: Path) -> str:
    """A picture of a ladder over many sizes, which ``make tables`` draws beside the page, and where it comes from.

    A record that ended early is followed by others with ``+``, as in ``toprung:ladder``; steps that none has are named.
    """
    name, *paths = words
    if not paths:
        return NOTHING
    record, from_others = ladder_record(paths[0], root)
    parts = [read(root / part) for part in paths[0].split("+")]
    sizes = sorted({int(size_of(m)) for m in record["measurements"]})
    rungs = {m.competitor["number"] for m in record["measurements"]} - {0}
    step = math.gcd(*sizes)
    missing = [str(size) for size in range(sizes[0], sizes[-1], step) if size not in sizes]
    said = f"{len(rungs)} rungs over {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} in steps of {step}"
    said += f"; not measured: {', '.join(missing)}" * bool(missing)
    commands = [f"`{r['what']}`, stored in `{part}`" for part, r in zip(paths[0].split("+"), parts, strict=True)][1:]
    source = " and ".join([speed_source(paths[0].split("+")[0], parts[0]).rstrip().removesuffix("."), *commands])
    return f"![{said}]({name})\n\n{said}. {source}. {from_others}".rstrip() + "  "


def each_text(m: Measurement) -> str:
    """Microseconds a call by marks around the loop, and what marks around each call add to it."""
    return f"{gflops_text(1e6 * m.median)} ({100 * ((m.each or math.nan) / m.median - 1):+.1f} %)"


def _which(m: Measurement, record: Mapping[str, Any]) -> str:
    """The name of a vendor that is not the only one of a record."""
    who = m.competitor
    several = who["number"] == 0 and len({o.competitor["name"] for o in record["measurements"] if not o.competitor["number"]}) > 1
    return str(who["name"]) if several else ""


def _shown(m: Measurement) -> float:
    """Return the figure that a table of a ladder shows: without helpers where operands are narrowed."""
    return m.alone if m.narrow else m.figure


def _said(limits: Limits, record: Mapping[str, Any]) -> str:
    """Return the text in brackets."""
    if "% of read" in (names := limits.names(record)):
        assert limits.memory
        return f"In brackets: share of the read bandwidth, measured in the same run ({limits.memory})."
    return "In brackets: share of the fp32 peak at the clock that was read." if names else ""


def _facts(words: Sequence[str], root: Path) -> str:
    """Return what a rung's record promises and demands: prediction, tiles, operands, legality, switches."""
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


def _merged(old: str | None, new: str) -> str:
    return new if old is None or old == new else f"{old} / {new}"


TABLES = {"ladder": _ladder, "rung": _rung, "each": _each, "sweep": _sweep, "facts": _facts}
