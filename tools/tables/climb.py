"""A ladder as one picture: a bar per rung with its idea, the vendor as a line. Readable at 680 pixels, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tables.common import ladder_record
from toprung.lab.harness.measure import Measurement
from toprung.report.text import size_of

WIDTH, LEFT, RIGHT, TOP, ROW = 680, 244, 52, 62, 22
"""Pixels: the picture, what stands left and right of the bars, above them, and a bar with its gap."""

STYLE = """<style>
text{font:14px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}.small{font-size:12.5px;fill:#59636e}
.page{fill:#fff}.bar{fill:#2f6fbb}.less{fill:#9dbfe4}.on{fill:#fff}
.vendor{stroke:#b3451b;stroke-width:2;stroke-dasharray:6 3}.name{fill:#b3451b;font-weight:600}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}
.page{fill:#0d1117}.bar{fill:#3d7fd0}.less{fill:#274b77}.vendor{stroke:#f0883e}.name{fill:#f0883e}}</style>"""


def _climb(words: Sequence[str], root: Path) -> str:
    """Return the picture of a ladder as Markdown; words: the file that ``make tables`` draws, a size and the record."""
    picture, size, path = words
    record, rungs, vendor = _rungs(size, path, root)
    device, (first, *_), best = record["environment"]["device"]["short_name"], rungs, max(rungs, key=lambda m: m.figure)
    said = (
        f"{len(rungs)} rungs of the {first.competitor['ladder']} ladder on an {device}, from {_tflops(first)} TFLOP/s with "
        f"{first.competitor['idea']} to {_tflops(best)} with {best.competitor['idea']}; "
        f"{vendor.competitor['idea']} has {_tflops(vendor)}"
    )
    return f"![{said}]({picture})\n\nDrawn from {', '.join(f'`{part}`' for part in path.split('+'))}.  "


def drawn(size: str, path: str, root: Path) -> str:
    """Return the picture as SVG, the same for the same records."""
    record, rungs, vendor = _rungs(size, path, root)
    most = max(m.figure for m in (*rungs, vendor))
    wide = (WIDTH - LEFT - RIGHT) / most
    height, line = TOP + ROW * len(rungs) + 34, LEFT + wide * vendor.figure
    device, date = record["environment"]["device"]["short_name"], record["environment"]["date"][:10]
    title = f"The {rungs[0].competitor['ladder']} ladder on an {device}: fp32 products of {size}×{size}×{size}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">{STYLE}',
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text x="12" y="24">{escape(title)}</text>',
        f'<text class="name" x="{line:.0f}" y="{TOP - 10}" text-anchor="end">{vendor.competitor["idea"]} {_tflops(vendor)}</text>',
    ]
    before = 0.0
    for i, m in enumerate(rungs):
        y, right, kind = TOP + ROW * i, LEFT + wide * m.figure, "bar" if m.figure > before else "less"
        inside = LEFT + 60 < right < line  # the vendor's line then crosses no figure
        at = f'{right - 6:.1f}" text-anchor="end' + '" class="on' * (kind == "bar") if inside else f"{right + 6:.1f}"
        parts += [
            f'<text x="32" y="{y + 15}" text-anchor="end">{m.competitor["number"]}</text>',
            f'<text x="42" y="{y + 15}">{escape(m.competitor["idea"])}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y + 2}" width="{right - LEFT:.1f}" height="{ROW - 5}"/>',
            f'<text x="{at}" y="{y + 15}">{_tflops(m)}</text>',
        ]
        before = m.figure
    foot = f"TFLOP/s, {date}; pale: slower than the rung before it. Each rung adds one idea to the one above."
    parts += [
        f'<path class="vendor" d="M{line:.1f} {TOP - 4}V{TOP + ROW * len(rungs)}"/>',
        f'<text class="small" x="12" y="{height - 12}">{foot}</text></svg>\n',
    ]
    return "\n".join(parts)


def _rungs(size: str, path: str, root: Path) -> tuple[Mapping[str, Any], list[Measurement], Measurement]:
    """Return a ladder's record, its rungs without switches in order, and the vendor's measurement, all at one size."""
    record, _ = ladder_record(path, root)
    found = [m for m in record["measurements"] if size_of(m) == size and not m.competitor["variant"]]
    rungs = sorted((m for m in found if m.competitor["number"]), key=lambda m: m.competitor["number"])
    return record, rungs, next(m for m in found if not m.competitor["number"])


def _tflops(m: Measurement) -> str:
    return f"{m.figure / 1e3:.1f}"


TABLES = {"climb": _climb}
