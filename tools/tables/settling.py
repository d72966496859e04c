"""Tables of how far a baseline agrees with itself: beside its neighbours, in stored records, and between them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables.common import source_line
from toprung.errors import BadRecord
from toprung.lab.harness.results import read, read_all

WITHIN = 0.01
"""Difference from itself alone that a settled baseline may have."""


def _settling(words: Sequence[str], root: Path) -> str:
    """Return the baseline's speed over its speed alone: by settling time beside a neighbour, or by record.

    Parameters
    ----------
    words : a record of ``benchmarks/settling.py``, with or without ``--records``
    """
    record = read(root / words[0])
    rows = record["settling"]
    lines = _of_records(rows) if "record" in rows[0] else _of_neighbours(rows)
    return "\n".join([*lines, "", source_line(words[0], record, "Speed of the baseline over its speed alone, of medians")])


def _of_neighbours(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each size and neighbour, a column for each settling time."""
    times = list(dict.fromkeys(r["settle_seconds"] for r in rows))
    lines = ["| size | beside | " + " | ".join(f"{t:g} s" for t in times) + " |", "|---|---|" + "---:|" * len(times)]
    for size, name in dict.fromkeys((r["size"], r["neighbour"]) for r in rows):
        own = {r["settle_seconds"]: r["speed"] for r in rows if (r["size"], r["neighbour"]) == (size, name)}
        lines.append(f"| {size} | {name} | " + " | ".join(f"{own[t]:.3f}" if t in own else "–" for t in times) + " |")
    return lines


def _of_records(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each record: its figures, their median and range, and those that are farther off than WITHIN."""
    lines = [
        f"| record | settling run | figures | median | least to most | off by more than {100 * WITHIN:.0f} %, at |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, settle in dict.fromkeys((r["record"], r["settle_seconds"]) for r in rows):
        own = [r for r in rows if (r["record"], r["settle_seconds"]) == (name, settle)]
        speeds = [r["speed"] for r in own]
        off = [f"{_short(r['size'])} ({r['speed']:.2f})" for r in own if abs(r["speed"] - 1) > WITHIN]
        lines.append(
            f"| `{name}` | {f'{settle:g} s' if settle else 'none'} | {len(own)} | {statistics.median(speeds):.3f} | "
            f"{min(speeds):.3f} to {max(speeds):.3f} | {', '.join(off) or '–'} |"
        )
    return lines


def _agreement(words: Sequence[str], root: Path) -> str:
    """Return a row for each square that several settled records of a folder have a peer on: their figures, and how far apart.

    Parameters
    ----------
    words : the peer, and a folder of records
    """
    name, folder = words
    found: dict[tuple[str, int], list[tuple[str, float]]] = {}
    for path, record in read_all([root / folder]):
        if isinstance(record, BadRecord):
            continue
        for m in record["measurements"]:
            sides = {m.problem.get(k) for k in "MNK"}
            plain = m.problem.get("trans") == "NN" and m.problem.get("batch", 1) == 1 and len(sides) == 1
            if m.competitor["name"] == name and m.mode == "warm" and m.settle_seconds and plain:
                found.setdefault((record["environment"]["device"]["backend"], m.problem["M"]), []).append((path.name, m.figure))
    lines = ["| size | records | least, GFLOP/s | most, GFLOP/s | apart |", "|---|---|---:|---:|---:|"]
    for (_, size), figures in sorted(found.items()):
        if len(figures) > 1:
            least, most = min(f for _, f in figures), max(f for _, f in figures)
            names = ", ".join(f"`{file}`" for file, _ in figures)
            lines.append(f"| {size} | {names} | {least:,.0f} | {most:,.0f} | {100 * (most / least - 1):.1f} % |")
    return "\n".join([*lines, "", f"Medians of {name} with a settling run, from all records in `{folder}`.  "])


def _short(size: str) -> str:
    """Return a square's side, or the three sides of any other product."""
    sides = size.split("×")
    return sides[0] if len(set(sides)) == 1 else size


TABLES = {"settling": _settling, "agreement": _agreement}
