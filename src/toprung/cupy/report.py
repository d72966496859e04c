"""Report of the products that ran, on which kernels, and why CuPy's own ran."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from toprung.cupy import products


@dataclass(frozen=True)
class Row:
    """One kind of product.

    Attributes
    ----------
    problem : shapes of both operands
    layout : how A and B lie: N row by row, T column by column, S otherwise
    taken, left : calls on toprung's kernels, and on CuPy's
    kernel : toprung's kernel with its tile and path; empty if CuPy's own ran
    why : reason why CuPy's own ran
    """

    problem: str
    layout: str
    taken: int
    left: int
    kernel: str
    why: str


@dataclass(frozen=True)
class Report:
    """Counts of float32 products since ``enable``, by kind; ``print`` it, or take ``to_json()``.

    Attributes
    ----------
    rows : kinds of products, the most frequent first
    small : calls with fewer operations than ``min_flops``
    refused : calls that CuPy's own ran because of what the program asked for, by the reason
    """

    rows: tuple[Row, ...]
    small: int
    refused: dict[str, int]

    @property
    def taken(self) -> int:
        """Calls that ran on toprung's kernels."""
        return sum(row.taken for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "taken": self.taken}

    def __str__(self) -> str:
        left = sum(row.left for row in self.rows)
        lines = [f"{self.taken} products on toprung's kernels, {left} that were CuPy's, {self.small} small"]
        lines.append(f"{'product':40} {'lie':3} {'ours':>8} {'theirs':>8}")
        for row in self.rows:
            lines.append(f"{row.problem:40} {row.layout:3} {row.taken:8} {row.left:8}")
            lines += _wrapped(row.kernel or row.why)
        for reason, count in self.refused.items():
            lines += [f"{count} calls left to CuPy:", *_wrapped(reason)]
        return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")


def report() -> Report:
    """Return what ran since ``enable``, of all settings that were active."""
    rows = [
        Row(entry.problem, entry.layout, entry.taken, entry.left, entry.kernel, entry.why)
        for one in products.every()
        for entry in (*one.past.values(), *one.entries.values())
    ]
    refused: dict[str, int] = {}
    for one in products.every():
        for reason, count in one.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    rows.sort(key=lambda row: -row.taken - row.left)
    return Report(tuple(rows), sum(one.small for one in products.every()), refused)
