"""Table of what limits a kernel that splits its operands in flight, by terms and tile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toprung.lab.bounds.in_flight import SCHEMES, cycles

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


TABLES = {"inflight": _limits}
