"""Tables of a level of Strassen: its speed, its launches and its errors; from benchmarks/strassen.py."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.lab.harness.results import read

ARMS = {"fp32x": "fp32x", "strassen": "Strassen", "winograd": "Winograd", "cuBLAS fp32": "cuBLAS fp32"}
"""Names in the record, with those of the tables."""


def _strassen(words: Sequence[str], root: Path) -> str:
    """Return the table that the first word names, of the record that the second does."""
    record = read(root / words[1])
    device, e = record["environment"]["device"], record["environment"]
    lines, unit = {"times": _times, "steps": _steps, "errors": _errors}[words[0]](record)
    source = (
        f"{unit}: {device['short_name']}, {device['runtime']}, driver {device['driver']}, {e['date'][:10]}, commit {e['commit']}, "
        f"`{record['what']}`, stored in `{words[1]}`.  "
    )
    return "\n".join([*lines, "", source])


def _times(record: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return TFLOP/s under load of each, and the energy and Frobenius error of what is compared."""
    lines = ["| M = N = K | " + " | ".join(ARMS.values()) + " | × fp32x | nJ an operation, Strassen / fp32x |"]
    lines.append("|---|" + "---:|" * (len(ARMS) + 2))
    for size, arms in record["times"].items():
        operations = 2.0 * int(size) ** 3
        seconds = {name: statistics.median(arms[name]["seconds"]) for name in ARMS}
        energy = {name: 1e9 * statistics.median(arms[name]["joules"]) / operations for name in ARMS if arms[name]["joules"]}
        cells = [f"{operations / seconds[name] / 1e12:.1f}" for name in ARMS]
        cells.append(f"{seconds['fp32x'] / seconds['strassen']:.3f}")
        cells.append(f"{energy['strassen']:.5f} / {energy['fp32x']:.5f}" if energy else "–")
        lines.append(f"| {size} | {' | '.join(cells)} |")
    return lines, "TFLOP/s, 2·M·N·K over time, medians under load, in turns"


def _steps(record: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return the milliseconds of each launch alone."""
    names = list(next(iter(record["steps"].values())))
    lines = ["| M = N = K | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    lines += [f"| {size} | {' | '.join(f'{1e3 * found[name]:.2f}' for name in names)} |" for size, found in record["steps"].items()]
    return lines, "Milliseconds of each launch after a pause"


def _errors(record: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return the Frobenius error of each by distribution, and the grade ratio of what is compared."""
    lines = ["| input | " + " | ".join(ARMS.values()) + " | grade, Strassen | grade, cuBLAS |"]
    lines.append("|---|" + "---:|" * (len(ARMS) + 2))
    for name, arms in record["errors"].items():
        cells = [f"{arms[arm]['frobenius']:.1e}" for arm in ARMS]
        cells += [f"{arms[arm]['grade']:.2g}" for arm in ("strassen", "cuBLAS fp32")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines, "Frobenius errors against float64, and grade ratios"


TABLES = {"strassen": _strassen}
