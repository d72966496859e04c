"""Table of products of halves and float32; from benchmarks/candidates.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables.common import product_rows
from toprung.lab.harness.results import read

KINDS = {"ff": "float32 · float32", "bf": "bfloat16 · float32", "fb": "float32 · bfloat16"}


def _mixed(words: Sequence[str], root: Path) -> str:
    """Return a row for each pair of types of the shapes that are named behind the record, as ``MxNxK``."""
    record = read(root / words[0])
    device, e = record["environment"]["device"], record["environment"]
    lines = [
        "| M×N×K | A · B | `matmul`, µs | converted, PyTorch fp32, µs | converted, TF32, µs | error, toprung / fp32 / TF32 |",
        "|---|---|---:|---:|---:|---|",
    ]
    rows, wanted = product_rows(record, "mixed"), dict[str, dict[str, Any]]()
    for row in reversed(rows):  # a shape may be there twice, the first counts, or have a row for each pair of types
        one = wanted.setdefault("x".join(map(str, row["size"])), {"size": row["size"], "seconds": {}, "error": {}})
        for part in ("seconds", "error"):
            one[part] |= row[part]
    for row in (wanted[size] for size in words[1:]):
        for kind, title in KINDS.items():
            arms = [f"{kind} {arm}" for arm in ("matmul", "torch fp32", "torch TF32")]
            if arms[0] not in row["seconds"]:
                continue
            times = [f"{1e6 * statistics.median(row['seconds'][arm]):.1f}" if arm in row["seconds"] else "–" for arm in arms]
            errors = " / ".join(f"{row['error'][arm]:.1e}" if arm in row["error"] else "–" for arm in arms)
            lines.append(f"| {'×'.join(map(str, row['size']))} | {title} | {' | '.join(times)} | {errors} |")
    samples = max(len(found) for row in rows for found in row["seconds"].values())
    source = (
        f"Medians of {samples} samples of CUDA graphs, in turns, B stored as N×K; errors are Frobenius norms against float64 of "
        f"the operands as given: {device['short_name']}, driver {device['driver']}, PyTorch {e['packages']['torch']}, "
        f"{e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


TABLES = {"mixed": _mixed}
