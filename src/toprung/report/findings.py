"""What became of guidelines: a table on the terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from toprung.errors import BadRecord, UnknownName
from toprung.guidelines.base import FAILS, HOLDS, WRONG, Finding, Way
from toprung.report.markdown import gflops_text, source_line
from toprung.results import read as read_record

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
    """What was measured, in words; or why nothing was."""
    if not finding.ways or finding.speed is None:
        return finding.reason
    good, other, s = finding.ways[finding.advised], finding.ways[finding.against], finding.speed
    speeds = ", ".join(f"{w.label}: {gflops_text(w.figure)}{_error(w)}" for w in finding.ways)
    return f"{speeds} {finding.unit}. {good.label} against {other.label}: {s.value:.2f} × ({s.low:.2f} to {s.high:.2f})"


def _error(way: Way) -> str:
    return f" (relative error {way.error:.1e})" if way.error else ""


def block(words: Sequence[str], root: Path) -> str:
    """One table of all guidelines in every record; or of one guideline's cases, if its name stands in front."""
    paths = [w for w in words if w.endswith(".json")]
    names = [w for w in words if w not in paths]
    if not paths:
        return "Not measured yet."
    records = [read_record(root / p) for p in paths]
    everybody = [{f.name: f for f in read(r)} for r in records]
    heads = [f"{r['environment']['device']['short_name']}, {r['environment']['device']['backend']}" for r in records]
    for name in names:
        if any(name not in found for found in everybody):
            raise UnknownName("guideline in every record", name, everybody[0])
    lines = _cases(names[0], everybody, heads) if names else _all(everybody, heads)
    return "\n".join([*lines, "", *(source_line(p, r) for p, r in zip(paths, records, strict=True))])


def _all(everybody: Sequence[Mapping[str, Finding]], heads: Sequence[str]) -> list[str]:
    columns = "".join(f" {h}, today | verdict |" for h in heads)
    lines = [f"| guideline | what the paper said |{columns}", "|---|---|" + "---|---|" * len(heads)]
    for name in dict.fromkeys(n for found in everybody for n in found):
        any_of = next(found[name] for found in everybody if name in found)
        cells = [c for found in everybody for c in ((today(found[name]), found[name].verdict) if name in found else ("–", "–"))]
        lines.append("| " + " | ".join((any_of.title, any_of.paper, *cells)) + " |")
    return lines


def _cases(name: str, everybody: Sequence[Mapping[str, Finding]], heads: Sequence[str]) -> list[str]:
    """A row a case; speeds, and errors where there are any."""
    findings = [found[name] for found in everybody]
    labels = list(dict.fromkeys(w.label for f in findings for w in f.ways))
    unit = findings[0].unit
    lines = [f"| {unit} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)] if labels else []
    for label in labels:
        ways = [next((w for w in f.ways if w.label == label), None) for f in findings]
        lines.append(f"| {label} | " + " | ".join("–" if w is None else gflops_text(w.figure) + _error(w) for w in ways) + " |")
    lines += [""] * bool(labels)
    for head, f in zip(heads, findings, strict=True):
        lines.append(f"{head}: **{f.verdict}**" + (f"; {f.reason}" if f.reason else "") + ".  ")
    return lines
