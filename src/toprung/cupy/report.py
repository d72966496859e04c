"""Report of the products that ran, on which kernels, and why CuPy's own ran."""

from __future__ import annotations

from dataclasses import dataclass

from toprung.blas import idle
from toprung.blas.counted import LEGEND, CountedReport, indented, not_by_kind
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
class Report(CountedReport[Row]):
    """Counts of float32 products since ``enable``, by kind; ``print`` it, or take ``to_json()``."""

    def __str__(self) -> str:
        lines = [f"{self.taken} products on toprung's kernels, {self.left} on CuPy's, {self.small} too small"]
        if self.rows:
            lines.append(f"{'product':40} {'layout':6} {'toprung':>8} {'CuPy':>8}")
        for row in self.rows:
            lines.append(f"{row.problem:40} {row.layout:6} {row.taken:8} {row.left:8}")
            lines += indented(row.kernel or row.why)
        lines += self.left_to("CuPy")
        if self.rows:
            lines.append(LEGEND)
        elif not (self.small or self.refused):
            lines += indented("no float32 product of CuPy arrays has run since enable")
        return "\n".join(lines)


def report() -> Report:
    """Return what ran since ``enable``, of all settings that were active."""
    rows = [
        Row(entry.problem, entry.layout, entry.taken, entry.left, entry.kernel, entry.why)
        for one in products.every()
        for entry in one.counted()
    ]
    rows.sort(key=lambda row: -row.taken - row.left)
    why = "" if any(row.taken for row in rows) else idle.reason("CuPy", products.gpus)
    return Report(tuple(rows), *not_by_kind(products.every()), why)
