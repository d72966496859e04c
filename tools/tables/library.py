"""The library beside its vendor's on many shapes: one line a product, with geometric mean and minimum."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables.common import source_line
from toprung.errors import BadRecord
from toprung.lab.harness.library import WAYS, Toprung
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import read
from toprung.lab.harness.stats import Interval, paired_ratio


def block(words: Sequence[str], root: Path) -> str:
    """Records of ``toprung bench --suite library``, several parts of one suite in several files."""
    from toprung.report.text import size_of

    if not words:
        return "Not measured yet."
    records = [read(root / w) for w in words]
    both, held = (_last(records, mode) for mode in ("warm", "held"))
    if not both:
        raise BadRecord(f"{' '.join(words)}: no product that both toprung and another library computed")
    rival = next(iter(both.values()))[0].competitor["name"]
    heads = ["product", f"{rival} TFLOP/s", "toprung TFLOP/s", "ratio (95 %)", *["queue held"] * bool(held), "kernel"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 2) + "---|"]
    for product, (theirs, ours) in both.items():
        ratio = _ratio(theirs, ours)
        batch = f", {count:,} products" if (count := ours.problem.get("batch", 1)) > 1 else ""
        cells = [
            size_of(ours) + batch, f"{theirs.figure / 1e3:.3g}", f"{ours.figure / 1e3:.3g}",
            f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})", _kernel(ours),
        ]  # fmt: skip
        if held:
            cells.insert(-1, f"{_ratio(*held[product]).value:.3f}" if product in held else "–")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"Geometric mean of {_mean(both)}.  "]
    if held:
        lines.append(f"With the queue held, so that the host does not count, of {_mean(held)}.  ")
    return "\n".join([*lines, *(source_line(w, r) for w, r in zip(words, records, strict=True))])


def _last(records: Sequence[Mapping[str, Any]], mode: str) -> dict[str, tuple[Measurement, Measurement]]:
    """Both libraries on each product; of one that is in several records, the last."""
    return {str(sorted(o.problem.items())): (t, o) for r in records for t, o in pairs(r["measurements"], mode=mode)}


def _ratio(theirs: Measurement, ours: Measurement) -> Interval:
    return paired_ratio(theirs.seconds, ours.seconds)


def _mean(both: Mapping[str, tuple[Measurement, Measurement]]) -> str:
    """All ratios in a clause."""
    from toprung.report.text import size_of

    ratios = {product: _ratio(*b).value for product, b in both.items()}
    least = min(ratios, key=ratios.__getitem__)
    mean = statistics.geometric_mean(ratios.values())
    return f"{len(ratios)} ratios {mean:.3f}, the least {ratios[least]:.3f} ({size_of(both[least][1])})"


def pairs(
    measurements: Sequence[Measurement], name: str = Toprung.title, mode: str = "warm"
) -> list[tuple[Measurement, Measurement]]:
    """For each product the first measurement of another library, and that of one of ours (``WAYS``)."""
    found: dict[str, dict[bool, Measurement]] = {}
    for m in measurements:
        who = m.competitor["name"]
        if m.mode == mode and (who == name or who not in WAYS):
            found.setdefault(str(sorted(m.problem.items())), {}).setdefault(who == name, m)
    return [(both[False], both[True]) for both in found.values() if len(both) == 2]


def _kernel(m: Measurement) -> str:
    """Which kernel ran, with what tile."""
    tile = m.competitor["tile"]
    sizes = "×".join(str(tile[k]) for k in ("BM", "BN", "BK") if k in tile)
    slices = f", {tile['SPLIT_K']} slices" if tile.get("SPLIT_K") else ""
    return f"`{m.competitor.get('kernel', '')}` {sizes}{slices}".rstrip()


TABLES = {"library": block}
