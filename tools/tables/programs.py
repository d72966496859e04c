"""Gains of whole programs, a row for each, from records of benchmarks/torch_models.py."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.lab.harness.results import read

NOT_TIMED: Mapping[str, Any] = {"seconds": {}, "errors": {}}


def _programs(words: Sequence[str], root: Path) -> str:
    """Return times as fast as PyTorch in fp32 for each program of a record, the greatest eager gain first.

    ``most=8`` shows eight programs in brief: those that gain most and those that gain least. Means and counts are of all.
    """
    *options, word = words
    record = read(root / word)
    e, device = record["environment"], record["environment"]["device"]
    programs: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in record["torch_models"]:
        programs[row["model"]][row["mode"]] = row
    order = sorted(programs.values(), key=lambda modes: -_gain(modes.get("eager")))
    gains = [found for modes in order if (found := _gain(modes.get("eager")))]
    shown, brief = order, [int(word.removeprefix("most=")) for word in options]
    if brief:
        shown = order[: len(gains)]  # those that were timed
        shown = [*shown[: brief[0] // 2], *shown[brief[0] // 2 :][-(brief[0] // 2) :]]
    lines = [
        "| program, GPU busy | PyTorch fp32, ms (error) | TF32 (error) | toprung (error) | compiled | CUDA graph |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for modes in shown:
        eager, title = modes.get("eager", NOT_TIMED), next(iter(modes.values()))["title"]
        title = title.partition(",")[0] if brief else title
        busy = f", {100 * eager['busy']:.0f} %" if "busy" in eager else ""
        errors = {arm: f" ({one['gradient']:.0e})" for arm, one in eager["errors"].items()}
        ms = f"{1e3 * statistics.median(eager['seconds']['fp32']):.1f}" if eager["seconds"].get("fp32") else "–"
        cells = (
            ms + errors.get("fp32", ""), *(_times(eager, arm) + errors.get(arm, "") for arm in ("tf32", "toprung")),
            *(_times(modes.get(mode), "toprung") for mode in ("compiled", "graphed")),
        )  # fmt: skip
        lines.append(f"| {title}{busy} | {' | '.join(cells)} |")
    slower = sum(found < 1 for found in gains)
    commits = ", ".join(dict.fromkeys(row.get("commit", e["commit"])[:12] for row in record["torch_models"]))
    text = (
        "Times as fast as PyTorch's fp32 in the same mode, eager first; errors: Frobenius norms over gradients or results, against "
        f"float64; busy: share of PyTorch's eager step in which the GPU works. {len(gains)} programs: geometric mean "
        f"{statistics.geometric_mean(gains):.2f}, {slower or 'none'} slower. {_samples(record)}: {device['short_name']}, PyTorch "
        f"{e['packages']['torch']}, {e['date'][:10]}, commits {commits}, `{word}`.  "
    )
    return "\n".join([*lines, "", text])


def _gain(row: Mapping[str, Any] | None) -> float:
    """Return times as fast as fp32, 0 where either was not timed."""
    return float(row["speedup"][0]) if row and "speedup" in row else 0.0


def _times(row: Mapping[str, Any] | None, arm: str) -> str:
    """Return an arm's times as fast as fp32 as text."""
    seconds = (row or NOT_TIMED)["seconds"]
    if not seconds.get("fp32") or not seconds.get(arm):
        return "–"
    return f"{_gain(row) if arm == 'toprung' else statistics.median(seconds['fp32']) / statistics.median(seconds[arm]):.2f}"


def _samples(record: Mapping[str, Any]) -> str:
    counts = {len(taken) for row in record["torch_models"] for taken in row["seconds"].values() if taken}
    return f"Medians of {' to '.join(map(str, sorted({min(counts), max(counts)})))} samples, in turns"


TABLES = {"programs": _programs}
