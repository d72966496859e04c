"""Tables of guidelines: all of them in every record, or one guideline's cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tables.common import NOTHING, source_line
from toprung.errors import UnknownName
from toprung.lab.guidelines.base import Finding, Way
from toprung.lab.harness.results import read as read_record
from toprung.report.findings import ratio_text, read
from toprung.report.text import gflops_text


def block(words: Sequence[str], root: Path) -> str:
    """One table of all guidelines in every record; or of one guideline's cases, if its name stands in front."""
    paths = [w for w in words if w.endswith(".json")]
    names = [w for w in words if w not in paths]
    if not paths:
        return NOTHING
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
        lines.append(f"| {label} | " + " | ".join("–" if w is None else gflops_text(w.figure) + error_text(w) for w in ways) + " |")
    lines += [""] * bool(labels)
    for head, f in zip(heads, findings, strict=True):
        lines.append(f"{head}: **{f.verdict}**" + (f"; {f.reason}" if f.reason else "") + ".  ")
    return lines


def today(finding: Finding) -> str:
    """Return a finding's measurements as a sentence; the reason if there are none."""
    if not finding.ways or finding.speed is None:
        return finding.reason
    speeds = ", ".join(f"{w.label}: {gflops_text(w.figure)}{error_text(w)}" for w in finding.ways)
    return f"{speeds} {finding.unit}. {ratio_text(finding)}"


def error_text(way: Way) -> str:
    """Return a case's error in brackets; empty if there is none."""
    return f" (relative error {way.error:.1e})" if way.error else ""


TABLES = {"guidelines": block}
