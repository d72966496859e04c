"""Errors of what many sums add up to as one picture: rounding averages out, truncation does not. Light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables.climb import STYLE, WIDTH
from toprung.lab.harness.results import read

LEFT, RIGHT, TOP, BOTTOM = 62, 92, 44, 330
"""Pixels of the plot's edges within the picture; right of it stands what the lines come to."""
LINES = ("#2f6fbb", "#b3451b", "#1a7f37")
"""Colours of the lines, which both schemes show well."""


def _averaged(words: Sequence[str], root: Path) -> str:
    """Return the picture as Markdown; words: the file that ``make tables`` draws, and the record of ``fp32x_study --averaged``."""
    picture, path = words
    record, lines = _lines(path, root)
    most = max(products for line in lines.values() for products, _ in line)
    ends = "; ".join(f"{way} {line[-1][1]:.1e}" for way, line in lines.items())
    e = record["environment"]
    said = f"Relative error of what sums of 32 products add up to, over the number of products: at {most:,} of them {ends}"
    return (
        f"![{said}]({picture})\n\n{said}. By the model of the unit, commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "
    )


def drawn(path: str, root: Path) -> str:
    """Return the picture as SVG, the same for the same record."""
    _, lines = _lines(path, root)
    points = [point for line in lines.values() for point in line]
    (least, most), (low, high) = ((min(values), max(values)) for values in zip(*points, strict=True))
    decades = math.floor(math.log10(low)), math.ceil(math.log10(high))

    def at(products: float, error: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * math.log(products / least) / math.log(most / least)
        return x, TOP + (BOTTOM - TOP) * (decades[1] - math.log10(error)) / (decades[1] - decades[0])

    height = BOTTOM + 90
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">{STYLE}',
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        '<text x="12" y="24">Relative error of a sum of products of uniform numbers, added up from sums of 32</text>',
    ]
    for decade in range(decades[0], decades[1] + 1):
        y = at(least, 10.0**decade)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#8b949e" stroke-width=".5"/>')
        parts.append(f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{decade}</text>')
    for power in range(math.ceil(math.log10(least)), int(math.log10(most)) + 1):
        x = at(10.0**power, high)[0]
        parts.append(f'<text class="small" x="{x:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>')
    parts.append(f'<text class="small" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{BOTTOM + 38}" text-anchor="middle">products</text>')
    for i, (colour, (way, line)) in enumerate(zip(LINES, lines.items(), strict=True)):
        course = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in line))
        (x, y), left = at(*line[-1]), 12 + 210 * i
        parts += [
            f'<path d="M{course}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
            f'<text x="{x + 8:.1f}" y="{y + 5:.1f}">{line[-1][1]:.1e}</text>',
            f'<path d="M{left} {BOTTOM + 65}h22" stroke="{colour}" stroke-width="2.5"/>',
            f'<text class="small" x="{left + 28}" y="{BOTTOM + 69}">{way}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _lines(path: str, root: Path) -> tuple[dict[str, Any], dict[str, list[tuple[int, float]]]]:
    """Return the record, and the number of products and the error of each point by line."""
    record, lines = read(root / path), dict[str, list[tuple[int, float]]]()
    for one in record["averaged"]:
        lines.setdefault(one["way"], []).append((one["products"], one["error"]))
    return record, lines


TABLES = {"averaged": _averaged}
