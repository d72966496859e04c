"""The report of products as a page: one HTML file that needs nothing else."""

from __future__ import annotations

import math
from typing import Any

from toprung.errors import MissingExtra
from toprung.report.html.chart import PALETTE
from toprung.report.html.page import HERE
from toprung.torch.settings import UNSEEN

TEMPLATE = "torch.html.jinja"


def environment() -> Any:
    """Return jinja2's environment of the page.

    Raises
    ------
    MissingExtra
        jinja2 is not installed
    """
    try:
        import jinja2
    except ImportError:
        raise MissingExtra('jinja2 is not installed; pip install "toprung[report]"') from None
    return jinja2.Environment(
        loader=jinja2.PackageLoader("toprung.torch", ""), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )


def rendered(report: Any) -> str:
    """Return the page's text of a ``Report``; MissingExtra without jinja2."""
    rows = []
    for row in report.rows:  # seconds of all its calls; 0 where nothing was measured
        calls = row.taken + row.left
        ours, theirs = (0.0 if math.isnan(s) else calls * s for s in (row.seconds, row.their_seconds))
        rows.append({"row": row, "calls": calls, "ours": ours, "theirs": theirs})
    longest = max((max(row["ours"], row["theirs"]) for row in rows), default=0.0)
    timed = [row for row in rows if row["ours"] and row["theirs"]]
    page: str = environment().get_template(TEMPLATE).render(
        report=report, rows=sorted(rows, key=lambda row: -max(row["ours"], row["theirs"])), longest=longest, unseen=UNSEEN,
        ours=sum(row["ours"] for row in timed), theirs=sum(row["theirs"] for row in timed), measured=longest > 0,
        style=(HERE / "page.css").read_text("utf-8"),
        colours={name: "; ".join(f"--{k}: {v}" for k, v in palette.items()) for name, palette in PALETTE.items()},
    )  # fmt: skip
    return page
