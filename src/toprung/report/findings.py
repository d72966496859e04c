"""Outcome of guidelines: a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from toprung.errors import BadRecord
from toprung.lab.guidelines.base import FAILS, HOLDS, WRONG, Finding, Way
from toprung.report.text import gflops_text

STYLES = {HOLDS: "green", FAILS: "yellow", WRONG: "bold red"}


def read(record: Mapping[str, Any]) -> list[Finding]:
    """A record's findings, or BadRecord."""
    try:
        return [Finding.read(f) for f in record["findings"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"the record's findings are damaged ({type(error).__name__}: {error}): measure again") from None


def table(findings: Sequence[Finding], title: str) -> Table:
    """A row a guideline."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_lines=True)
    made.add_column("guideline", max_width=20)
    made.add_column("what the paper said", ratio=2)
    made.add_column("what this device does today", ratio=3)
    made.add_column("verdict", max_width=16)
    for f in findings:
        made.add_row(f.title, Text(f.paper), Text(today(f)), Text(f.verdict, STYLES.get(f.verdict, "dim")))
    return made


def today(finding: Finding) -> str:
    """Return what was measured, in words; or why nothing was."""
    if not finding.ways or finding.speed is None:
        return finding.reason
    good, other, s = finding.ways[finding.advised], finding.ways[finding.against], finding.speed
    speeds = ", ".join(f"{w.label}: {gflops_text(w.figure)}{error_text(w)}" for w in finding.ways)
    return f"{speeds} {finding.unit}. {good.label} against {other.label}: {s.value:.2f} × ({s.low:.2f} to {s.high:.2f})"


def error_text(way: Way) -> str:
    """Return a case's error in brackets; empty if there is none."""
    return f" (relative error {way.error:.1e})" if way.error else ""
