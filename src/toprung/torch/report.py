"""Report of the products that ran, on which kernels, and why PyTorch's own ran."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from toprung.torch import products

UNSEEN = (
    "convolutions and recurrent layers (cuDNN)",
    "fused attention (scaled_dot_product_attention but for its math)",
    "decompositions and solvers (cuSOLVER)",
    "code that was compiled ahead of time (AOTInductor)",
)
"""Products that do not come by aten's operators, and are PyTorch's whatever is enabled."""


@dataclass(frozen=True)
class Row:
    """One kind of product.

    Attributes
    ----------
    op : operator of aten
    problem : batch×M×N×K
    layout : how A and B lie: N row by row, T column by column, S with gaps
    device : PyTorch's name of the device
    taken, left : calls on toprung's kernels, and on PyTorch's
    kernel : toprung's kernel with its tile; empty if PyTorch's own ran
    why : reason why PyTorch's own ran
    eligible : True if toprung could have computed it
    """

    op: str
    problem: str
    layout: str
    device: str
    taken: int
    left: int
    kernel: str
    why: str
    eligible: bool


@dataclass(frozen=True)
class Report:
    """Counts of products since ``enable``, by kind; ``print`` it, or take ``to_json()``.

    Attributes
    ----------
    rows : kinds of products, the most frequent first
    small : calls with fewer operations than ``min_flops``
    refused : calls that PyTorch's own ran because of what the program asked for, by the reason
    """

    rows: tuple[Row, ...]
    small: int
    refused: dict[str, int]

    @property
    def taken(self) -> int:
        """Calls that ran on toprung's kernels."""
        return sum(row.taken for row in self.rows)

    @property
    def eligible(self) -> int:
        """Calls that toprung could have computed."""
        return sum(row.taken + row.left for row in self.rows if row.eligible)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows], "taken": self.taken, "not_seen": list(UNSEEN)}

    def __str__(self) -> str:
        lines = [
            f"{self.taken} products on toprung's kernels, {self.eligible - self.taken} that might have been, {self.small} small",
            f"{'operator':18} {'batch×M×N×K':24} {'lie':3} {'ours':>8} {'theirs':>8}",
        ]
        for row in self.rows:
            lines.append(f"{row.op:18} {row.problem:24} {row.layout:3} {row.taken:8} {row.left:8}")
            lines += _wrapped(row.kernel or row.why)
        for reason, count in self.refused.items():
            lines += [f"{count} calls left to PyTorch:", *_wrapped(reason)]
        return "\n".join([*lines, "not seen:", *(f"    {what}" for what in UNSEEN)])


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 76, initial_indent="    ", subsequent_indent="    ")


def report() -> Report:
    """Return what ran on which kernels since ``enable``, or since the first ``use``."""
    kinds: dict[tuple[str, ...], list[Any]] = {}
    small, refused = 0, dict[str, int]()
    for one in products.every():
        small += one.small
        for reason, count in one.refused.items():
            refused[reason] = refused.get(reason, 0) + count
        for entry in [*one.past.values(), *one.entries.values()]:
            kinds.setdefault((entry.op, entry.problem, entry.layout, entry.device, entry.kernel, entry.why), []).append(entry)
    rows = [
        Row(
            op, problem, layout, device, sum(e.taken for e in entries), sum(e.left for e in entries), kernel, why,
            any(e.eligible for e in entries),
        )
        for (op, problem, layout, device, kernel, why), entries in kinds.items()
    ]  # fmt: skip
    return Report(tuple(sorted(rows, key=lambda row: -(row.taken + row.left))), small, refused)
