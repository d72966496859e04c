"""The library beside its vendor's on many shapes: one line a product, with geometric mean and minimum."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from toprung.blas.competitor import WAYS, Toprung
from toprung.errors import BadRecord
from toprung.measure import Measurement
from toprung.results import read
from toprung.stats import Interval, paired_ratio


def block(words: Sequence[str], root: Path) -> str:
    """Records of ``toprung bench --suite library``, several parts of one suite in several files."""
    from toprung.report.markdown import size_of, source_line

    if not words:
        return "Not measured yet."
    records = [read(root / w) for w in words]
    found = {str(sorted(ours.problem.items())): (theirs, ours) for r in records for theirs, ours in pairs(r["measurements"])}
    both = list(found.values())  # a product that is in several records: the last
    if not both:
        raise BadRecord(f"{' '.join(words)}: no product that both toprung and another library computed")
    rival = both[0][0].competitor["name"]
    lines = [f"| product | {rival} TFLOP/s | toprung TFLOP/s | ratio (95 %) | kernel |", "|---|---:|---:|---:|---|"]
    ratios: list[Interval] = []
    for theirs, ours in both:
        ratio = paired_ratio(theirs.seconds, ours.seconds)
        ratios.append(ratio)
        batch = f", {count:,} products" if (count := ours.problem.get("batch", 1)) > 1 else ""
        cells = (
            size_of(ours) + batch, f"{theirs.figure / 1e3:.3g}", f"{ours.figure / 1e3:.3g}",
            f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})", _kernel(ours),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    values = [r.value for r in ratios]
    least = size_of(both[values.index(min(values))][1])
    lines += [
        "",
        f"Geometric mean of {len(values)} ratios {statistics.geometric_mean(values):.3f}, the least {min(values):.3f} ({least}).  ",
    ]
    return "\n".join([*lines, *(source_line(w, r) for w, r in zip(words, records, strict=True))])


def pairs(measurements: Sequence[Measurement], name: str = Toprung.title) -> list[tuple[Measurement, Measurement]]:
    """For each product the first measurement of another library, and that of one of ours (``WAYS``)."""
    found: dict[str, dict[bool, Measurement]] = {}
    for m in measurements:
        who = m.competitor["name"]
        if m.mode == "warm" and (who == name or who not in WAYS):
            found.setdefault(str(sorted(m.problem.items())), {}).setdefault(who == name, m)
    return [(both[False], both[True]) for both in found.values() if len(both) == 2]


def _kernel(m: Measurement) -> str:
    """Which kernel ran, with what tile."""
    tile = m.competitor["tile"]
    sizes = "×".join(str(tile[k]) for k in ("BM", "BN", "BK") if k in tile)
    slices = f", {tile['SPLIT_K']} slices" if tile.get("SPLIT_K") else ""
    return f"`{m.competitor.get('kernel', '')}` {sizes}{slices}".rstrip()
