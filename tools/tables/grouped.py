"""Table of groups of products in one launch; from benchmarks/grouped.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from toprung.lab.harness.results import read


def _grouped(words: Sequence[str], root: Path) -> str:
    """Return rows for each group, by default and in plain fp32: a call and a graph of few launches, of one each, of PyTorch's."""
    record = read(root / words[0])
    device, e = record["environment"]["device"], record["environment"]
    lines = [
        "| group | launches | `matmul_grouped`, µs | a `matmul` each, µs | `torch.mm` each, µs | error, toprung / PyTorch |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in record["grouped"]:
        times = {name: f"{1e6 * statistics.median(samples):.0f}" for name, samples in row["seconds"].items()}
        cells = [f"{times.get(name, 'wrong')} / {times.get(f'{name}, graph', 'wrong')}" for name in ("group", "each", "torch")]
        errors = f"{row['error']['group']:.1e} / {row['error']['torch']:.1e}"
        lines.append(f"| {row['group']} | {row['launches']['group']} | {' | '.join(cells)} | {errors} |")
        if "group, fp32" in row["launches"]:
            cells = [f"{times.get(arm, 'wrong')} / {times.get(f'{arm}, graph', 'wrong')}" for arm in ("group, fp32", "each, fp32")]
            errors = f"{row['error']['group, fp32']:.1e} / {row['error']['torch']:.1e}"
            lines.append(f"| the same in plain fp32 | {row['launches']['group, fp32']} | {' | '.join(cells)} | | {errors} |")
    samples = max(len(found) for row in record["grouped"] for found in row["seconds"].values())
    source = (
        f"Microseconds of a call / of the same in a CUDA graph, medians of {samples} samples in turns. "
        f"Errors are the largest of a group, as Frobenius norms against "
        f"float64: {device['short_name']}, driver {device['driver']}, PyTorch {e['packages']['torch']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`, stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


TABLES = {"grouped": _grouped}
