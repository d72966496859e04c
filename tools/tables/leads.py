"""Leads that were tried one by one, beside cuBLAS in the same run: a Markdown table for each run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord
from toprung.lab.harness.results import read

VENDOR = "cublas"


def block(words: Sequence[str], root: Path) -> str:
    """Tables of a record of kind ``leads``; ``run=7`` chooses runs, none means all of them. Runs are never mixed.

    Raises
    ------
    BadRecord
        no such record or run, or a run without cuBLAS
    """
    path = next((w for w in words if w.endswith(".json")), "")
    record = read(root / path)
    if record.get("kind") != "leads":
        raise BadRecord(f"{path} has no leads")
    asked = {int(w.removeprefix("run=")) for w in words if w.startswith("run=")}
    runs = [r for r in record["runs"] if not asked or r["run"] in asked]
    if not runs:
        raise BadRecord(f"{path} has no run {sorted(asked)}")
    device = record["environment"]["device"]
    tables = [_table(r, [x for x in record["leads"] if x["run"] == r["run"]], path) for r in runs]
    return "\n".join([
        *tables,
        f"Medians of samples taken in turns; each ratio is to cuBLAS of the same run. {device['short_name']}, {device['runtime']}, "
        f"driver {device['driver']}, {record['environment']['date'][:10]}, {record['what']}, stored in `{path}`.  ",
    ])  # fmt: skip


def _table(run: Mapping[str, Any], leads: Sequence[Mapping[str, Any]], path: str) -> str:
    sizes = sorted({x["size"] for x in leads}, reverse=True)
    found = {(x["layout"], x["name"], x["size"]): x for x in leads}
    energy = run["windows_measure_energy"]
    heads = [f"{s}: TFLOP/s | to cuBLAS" for s in sizes] + ["MHz"] + ["W", "pJ/flop"] * energy
    lines = [
        f"Run {run['run']}: {run['what']}.",
        "",
        f"| A, B | lead | what | {' | '.join(heads)} |",
        "|---|---|---|" + "---:|" * (2 * len(sizes) + 1 + 2 * energy),
    ]
    for layout, name in dict.fromkeys((x["layout"], x["name"]) for x in leads):
        cells = []
        for size in sizes:
            one, vendor = found.get((layout, name, size)), found.get((layout, VENDOR, size))
            if vendor is None:
                raise BadRecord(f"{path}: run {run['run']} has no cuBLAS for {layout} at {size}")
            cells += [f"{_speed(one):.1f}", f"{_speed(one) / _speed(vendor):.3f}"] if one else ["", ""]
        largest = found[layout, name, next(s for s in sizes if (layout, name, s) in found)]
        cells.append(f"{_median(largest, 'mhz'):.0f}")
        if energy:
            watts = _median(largest, "watts")
            cells += [f"{watts:.0f}", f"{watts / _speed(largest):.1f}"]
        lines.append("| " + " | ".join((layout, name, largest["what"], *cells)) + " |")
    return "\n".join([*lines, ""])


def _median(lead: Mapping[str, Any], what: str) -> float:
    return float(statistics.median(s[what] for s in lead["samples"]))


def _speed(lead: Mapping[str, Any]) -> float:
    """In TFLOP/s; watts over it are pJ/flop."""
    return 2 * float(lead["size"]) ** 3 / _median(lead, "seconds") / 1e12


TABLES = {"leads": block}
