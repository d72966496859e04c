"""Tables of a kernel that splits its operands in flight: what limits it, by terms and tile, and its times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables.common import NOTHING
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_inflight.cost import configs, seconds
from toprung.lab.bounds.in_flight import SCHEMES, cycles
from toprung.lab.harness.results import read

TILES = ((128, 128), (128, 64), (64, 64))


def _limits(words: Sequence[str], root: Path) -> str:
    """Return the cycles for 32 of K of each tile, the largest in bold."""
    lines = ["| terms | tile | matrix units | instructions | shared memory |", "|---|---|---:|---:|---:|"]
    for scheme in SCHEMES:
        for rows, cols in TILES:
            found = cycles(scheme, rows, cols)
            most = max(found.values())
            cells = " | ".join(f"**{n:.0f}**" if n == most else f"{n:.0f}" for n in found.values())
            lines.append(f"| {scheme.name} | {rows}×{cols} | {cells} |")
    return "\n".join(lines)


OTHERS = ("fp32", "tf32", "beforehand")
"""Arms of a record of ``benchmarks/inflight.py`` that are not the kernel's."""


def _times(words: Sequence[str], root: Path) -> str:
    """Return the times and errors of the kernel's fastest block beside those of others, from a record."""
    if not words:
        return NOTHING
    (word,) = words
    record = read(root / word)
    lines = [
        "| product | cuBLAS fp32, µs | TF32 | split beforehand | in flight | block | over cuBLAS | error over cuBLAS's |"
        " by the model |",
        "|---|---:|---:|---:|---:|---|---:|---:|---|",
    ]
    for row in record["inflight"]:
        batch, m, n, k = row["size"]
        times = {name: 1e6 * statistics.median(found) for name, found in row["seconds"].items()}
        ours = {name: t for name, t in times.items() if name not in OTHERS}
        best = min(ours, key=ours.__getitem__)
        desc = GemmDesc(m, n, k, batch, stride_a=m * k, stride_b=k * n, stride_c=m * n)
        units = record["environment"]["device"]["compute_units"]
        guess = min((c for c in configs(desc, units) if str(c) in ours), key=lambda c: seconds(desc, c, units))
        known = " | ".join(f"{times[name]:.1f}" if name in times else "" for name in OTHERS)
        chosen = "the same" if str(guess) == best else f"{guess}, {ours[str(guess)]:.1f}".replace("x", "×")
        lines.append(
            f"| {_product(row)} | {known} | **{ours[best]:.1f}** | {best.replace('x', '×')} | {times['fp32'] / ours[best]:.2f} "
            f"| {row['error'][best] / row['error']['fp32']:.2f} | {chosen} |"
        )
    e = record["environment"]
    return "\n".join([
        *lines, "",
        f"Medians by CUDA graph, in turns. {e['device']['name']}, driver {e['device']['driver']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`.",
    ])  # fmt: skip


def _steps(words: Sequence[str], root: Path) -> str:
    """Return the time of the fastest block by product, a column for each record."""
    if not words:
        return NOTHING
    records = [read(root / word) for word in words]
    lines = ["| product | " + " | ".join(f"{i + 1}, µs" for i in range(len(records))) + " |", "|---|" + "---:|" * len(records)]
    for rows in zip(*(record["inflight"] for record in records), strict=True):
        times = [min(statistics.median(found) for name, found in row["seconds"].items() if name not in OTHERS) for row in rows]
        lines.append(f"| {_product(rows[0])} | " + " | ".join(f"{1e6 * t:.1f}" for t in times) + " |")
    commits = ", ".join(record["environment"]["commit"] for record in records)
    e = records[0]["environment"]
    return "\n".join([*lines, "", f"{e['device']['name']}, driver {e['device']['driver']}, {e['date'][:10]}, commits {commits}."])


def _product(row: Mapping[str, Any]) -> str:
    """Return the size and the layout of a product as text."""
    batch, m, n, k = row["size"]
    return (f"{batch}×" if batch > 1 else "") + (f"{m}³" if m == n == k else f"{m}×{n}×{k}") + f" {row['layout']}"


TABLES = {"inflight": _limits, "inflight_times": _times, "inflight_steps": _steps}
