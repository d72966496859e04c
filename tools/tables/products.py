"""Tables of single products on a GPU: those of programs beside PyTorch, ways to fp32's accuracy, and the splitting pass."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables.common import product_rows
from toprung.lab.harness.results import read


def _shapes(words: Sequence[str], root: Path) -> str:
    """Return a row for each product of a record of ``benchmarks/candidates.py``, and the geometric mean over all of them."""
    record = read(root / words[0])
    lines = ["| product | `matmul`, µs | PyTorch fp32 | TF32 | over TF32 | kernel |", "|---|---:|---:|---:|---:|---|"]
    shares = []
    rows = product_rows(record, "shapes")
    for row in rows:
        ours, fp32, tf32 = (_us(row, name) for name in ("toprung", "torch fp32", "torch TF32"))
        shares.append(ours / tf32)
        size = "×".join(map(str, row["size"] if row["size"][0] > 1 else row["size"][1:]))
        kernel = row["kernel"].split(" in ")[0].split(" STAGES")[0].replace("x", "×").replace("fp32×", "fp32x")
        lines.append(f"| {size} {row['layout']} | **{ours:.1f}** | {fp32:.1f} | {tf32:.1f} | {ours / tf32:.2f} | `{kernel}` |")
    slower = sum(_us(row, "toprung") > _us(row, "torch fp32") for row in rows)
    errors = [row["error"]["toprung"] / row["error"]["torch fp32"] for row in rows]
    text = (
        f"Geometric mean of `matmul` over TF32: {statistics.geometric_mean(shares):.2f}; {slower} of {len(shares)} slower than "
        f"PyTorch in fp32; errors {min(errors):.2f} to {max(errors):.2f} of PyTorch's in fp32."
    )
    return "\n".join([*lines, "", text, "", _source(record, words[0])])


def _presplit(words: Sequence[str], root: Path) -> str:
    """Return a row for each product of a record of ``benchmarks/candidates.py``: the best block of each way to fp32's accuracy."""
    record = read(root / words[0])
    lines = [
        "| A, product | in the launch, µs | by a pass | prepacked | in flight | both split |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in product_rows(record, "presplit"):
        found = {name: _least(row, name) for name in ("one", "presplit", "prepacked", "in flight", "fp32x")}
        best = min(t for name, t in found.items() if name != "prepacked" and not math.isnan(t))
        cells = [f"**{t:.1f}**" if t == best else "" if math.isnan(t) else f"{t:.1f}" for t in found.values()]
        name = f"{row['type_a']}, {'×'.join(map(str, row['size']))} {row['layout']}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _source(record, words[0])])


WAYS = {"both beforehand": "hopper_fp32x", "in flight": "hopper_inflight", "in flight, parts": "hopper_inflight_split_k"}
"""Columns of ``_deep_and_odd``, and the families that they show."""


def _deep_and_odd(words: Sequence[str], root: Path) -> str:
    """Return a row for each product of a record of ``benchmarks/candidates.py``: the fastest of each way to fp32's accuracy."""
    record = read(root / words[0])
    lines = [f"| product | cuBLAS fp32, µs | TF32 | {' | '.join(WAYS)} | by the model |", f"|---|{'---:|' * (2 + len(WAYS))}---|"]
    for row in product_rows(record, "deep_and_odd"):
        found = {way: _least(row, family) for way, family in WAYS.items()}
        best, guess = min(t for t in found.values() if not math.isnan(t)), min(row["predicted"], key=row["predicted"].__getitem__)
        cells = [f"**{t:.1f}**" if t == best else "" if math.isnan(t) else f"{t:.1f}" for t in found.values()]
        size = "×".join(map(str, row["size"] if row["size"][0] > 1 else row["size"][1:]))
        told = "the fastest" if _us(row, guess) <= 1.02 * best else f"{_us(row, guess) / best:.2f} times as long"
        lines.append(f"| {size} {row['layout']} | {_us(row, 'fp32'):.1f} | {_us(row, 'tf32'):.1f} | {' | '.join(cells)} | {told} |")
    return "\n".join([*lines, "", _source(record, words[0])])


def _splitting(words: Sequence[str], root: Path) -> str:
    """Return a row for each operand of a record of ``benchmarks/splitting.py``: the pass over a copy of as many bytes."""
    record = read(root / words[0])
    lines = ["| rows × K | a copy, µs | the pass, K along memory, over it | K across memory |", "|---|---:|---:|---:|"]
    for row in record["splitting"]:
        copy, *arms = (_us(row, f"{arm}, cold") for arm in ("copy", "along", "across"))
        lines.append(f"| {row['rows']}×{row['K']} | {copy:.1f} | {' | '.join(f'{t / copy:.2f}' for t in arms)} |")
    return "\n".join([*lines, "", _source(record, words[0])])


def _us(row: dict[str, Any], name: str) -> float:
    return 1e6 * float(statistics.median(row["seconds"][name]))


def _least(row: dict[str, Any], of: str) -> float:
    """Return the median of the fastest arm whose name begins with ``of``, in µs; NaN where there is none."""
    return min((_us(row, name) for name in row["seconds"] if name == of or name.startswith(f"{of} ")), default=math.nan)


def _source(record: dict[str, Any], word: str) -> str:
    device, e = record["environment"]["device"], record["environment"]
    return (
        f"Medians by CUDA graph, in turns: {device['short_name']}, driver {device['driver']}, PyTorch {e['packages']['torch']}, "
        f"{e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{word}`.  "
    )


TABLES = {"shapes": _shapes, "presplit": _presplit, "deep_and_odd": _deep_and_odd, "splitting": _splitting}
