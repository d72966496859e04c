"""Picture of a profiled training step, and its longest kernels; from benchmarks/profile_step.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toprung.lab.harness.results import read

SHOWN, NAME = 6, 60
"""Kernels of each arm in the table, and characters of a name."""


def _torch_profile(words: Sequence[str], root: Path) -> str:
    """Return the picture, which the script draws beside the page, and a row for each of the longest kernels without and with."""
    picture, path = words
    record = read(root / path)
    e, device, found = record["environment"], record["environment"]["device"], record["torch_profile"]
    lines = ["| | kernel | times | ms |", "|---|---|---:|---:|"]
    for arm, said in (("fp32", "PyTorch"), ("toprung", "with toprung")):
        rows = found["arms"][arm]["kernels"]
        for one in rows[:SHOWN]:
            name = one["name"] if len(one["name"]) <= NAME else one["name"][:NAME] + "…"
            lines.append(f"| {said} | `{name}` | {one['count']} | {1e3 * one['seconds']:.2f} |")
        rest = [*rows[SHOWN:], found["arms"][arm]["rest"]]
        count, seconds = sum(one["count"] for one in rest), sum(one["seconds"] for one in rest)
        lines.append(f"| {said} | everything else | {count} | {1e3 * seconds:.2f} |")
    source = (
        f"{found['title']}, forward, loss and backward, by PyTorch's profiler: {device['short_name']}, driver {device['driver']}, "
        f"PyTorch {e['packages']['torch']}, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "
    )
    return "\n".join([f"![Kernels of a step over time, without toprung and with it]({picture})", "", *lines, "", source])


TABLES = {"torch_profile": _torch_profile}
