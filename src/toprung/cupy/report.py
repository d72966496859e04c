"""Report of the products that ran, on which kernels, and why CuPy's own ran."""

from __future__ import annotations

from dataclasses import dataclass

from toprung.blas.counted import CountedReport, indented, not_by_kind
from toprung.cupy import products

WIDTH = 100
"""Characters in a line of the printed report."""


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
class Report(CountedReport[Row]):
    """Counts of float32 products since ``enable``, by kind; ``print`` it, or take ``to_json()``."""

    def __str__(self) -> str:
        left = sum(row.left for row in self.rows)
        lines = [f"{self.taken} products on toprung's kernels, {left} that were CuPy's, {self.small} small"]
        lines.append(f"{'product':40} {'lie':3} {'ours':>8} {'theirs':>8}")
        for row in self.rows:
            lines.append(f"{row.problem:40} {row.layout:3} {row.taken:8} {row.left:8}")
            lines += indented(row.kernel or row.why, WIDTH)
        for reason, count in self.refused.items():
            lines += [f"{count} calls left to CuPy:", *indented(reason, WIDTH)]
        return "\n".join(lines)


def report() -> Report:
    """Return what ran since ``enable``, of all settings that were active."""
    rows = [
        Row(entry.problem, entry.layout, entry.taken, entry.left, entry.kernel, entry.why)
        for one in products.every()
        for entry in (*one.past.values(), *one.entries.values())
    ]
    rows.sort(key=lambda row: -row.taken - row.left)
    return Report(tuple(rows), *not_by_kind(products.every()))
