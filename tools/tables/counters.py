"""Hardware counters of local memory, as a Markdown table: records of benchmarks/bank_conflicts.py of 32569d8."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tables.common import source_line
from toprung.lab.harness.results import read


def block(words: Sequence[str], root: Path) -> str:
    """Every rung of a record: conflicts counted at loads and stores, and wavefronts (turns of the memory) for each instruction."""
    lines = [
        "| rung | switches | load instructions | conflicts at loads | wavefronts a load | store instructions | "
        "conflicts at stores | wavefronts a store |",
        "|---|---|" + "---:|" * 6,
    ]
    records = [(word, read(root / word)) for word in words]
    for _, record in records:
        for c in record["counted"]:
            cells = [c["rung"], f"`{c['variant']}`" if c["variant"] else "–"]
            for what in ("load", "store"):
                instructions = c[f"{what}_instructions"]
                turns = f"{c[f'{what}_wavefronts'] / instructions:.2f}" if instructions else "–"
                cells += [f"{instructions:,}", f"{c[f'{what}_conflicts']:,}", turns]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(source_line(word, record, "Counted once") for word, record in records)])


TABLES = {"counters": block}
