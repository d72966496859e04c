"""Tables of a kernel that splits its operands in flight: what limits it, by terms and tile, and its times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables.common import NOTHING, product_rows
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_fp32x.cost import alone, in_slices
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
"""Arms of a record that are not the kernel's."""


def _times(words: Sequence[str], root: Path) -> str:
    """Return the times and errors of the kernel's fastest block beside those of others, from a record.

    Its first products, as many as the second word says, have a row each; the others a sentence.
    """
    if not words:
        return NOTHING
    word, count = words
    record, shown = read(root / word), int(count)
    lines = [
        "| product | cuBLAS fp32, µs | TF32 | split beforehand | in flight | block | over cuBLAS | error over cuBLAS's |"
        " by the model |",
        "|---|---:|---:|---:|---:|---|---:|---:|---|",
    ]
    over, errors, chosen_over = [], [], []
    for i, row in enumerate(product_rows(record, "inflight")):
        batch, m, n, k = row["size"]
        times = {name: 1e6 * statistics.median(found) for name, found in row["seconds"].items()}
        ours = {name: t for name, t in times.items() if name not in OTHERS}
        best = min(ours, key=ours.__getitem__)
        strides = dict(zip(("stride_a", "stride_b", "stride_c"), (m * k, k * n, m * n), strict=True)) if batch > 1 else {}
        trans_a, trans_b = (x == "T" for x in row["layout"])
        desc = GemmDesc(m, n, k, batch, trans_a, trans_b, align_a=4, align_b=4, align_c=4, **strides)
        units = record["environment"]["device"]["compute_units"]
        guess = min((c for c, _ in in_slices(desc, units) if str(c) in ours), key=lambda c: alone(desc, c, units)[0])
        over.append(times["fp32"] / ours[best])
        errors.append(row["error"][best] / row["error"]["fp32"])
        chosen_over.append(ours[str(guess)] / ours[best])
        if i >= shown:
            continue
        known = " | ".join(f"{times[name]:.1f}" if name in times else "" for name in OTHERS)
        chosen = "the same" if str(guess) == best else f"{guess}, {ours[str(guess)]:.1f}".replace("x", "×")
        cells = f"**{ours[best]:.1f}** | {best.replace('x', '×')} | {over[-1]:.2f} | {errors[-1]:.2f} | {chosen}"
        lines.append(f"| {_product(row)} | {known} | {cells} |")
    rest, bad = over[shown:], errors[shown:]
    e = record["environment"]
    return "\n".join([
        *lines, "",
        f"{len(rest)} drawn products, to which the model is fitted, the last third with rows that begin anywhere: {min(rest):.2f} "
        f"to {max(rest):.2f} times cuBLAS's speed, {statistics.geometric_mean(rest):.2f} in the geometric mean, slower in "
        f"{sum(x < 1 for x in rest)}; errors {min(bad):.2f} to {max(bad):.2f} of cuBLAS's; the model's block takes "
        f"at most {max(chosen_over[shown:]):.2f} times as long as the best.",
        "",
        f"Medians by CUDA graph, in turns. {e['device']['name']}, driver {e['device']['driver']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`.",
    ])  # fmt: skip


def _steps(words: Sequence[str], root: Path) -> str:
    """Return the time of the fastest block by product, a column for each record."""
    if not words:
        return NOTHING
    records = [read(root / word) for word in words]
    lines = ["| product | " + " | ".join(f"{i + 1}, µs" for i in range(len(records))) + " |", "|---|" + "---:|" * len(records)]
    for rows in zip(*(product_rows(record, "inflight") for record in records), strict=False):  # drawn products follow in some
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
