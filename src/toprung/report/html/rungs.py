"""A rung's part of the page: idea, prediction, text, what changed since the rung before, measurements, instructions, limiter."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toprung.errors import ToprungError
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.levels import Bound, rate
from toprung.lab.explain import next_step
from toprung.lab.harness.measure import Measurement
from toprung.lab.rung import Rung, ladder
from toprung.lab.sass.machine_code import MachineCode
from toprung.report.html.chart import Row
from toprung.report.html.limits import Limits
from toprung.report.html.stairs import page_of, stair_rows
from toprung.report.html.views import Views

SHOWN = 12
"""Classes of instructions that are shown one by one."""


@dataclass(frozen=True)
class Bar:
    """A row with a bar: ``part`` of the longest one, 0 to 1."""

    name: str
    text: str
    part: float
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Page:
    """One rung.

    Attributes
    ----------
    rung : None where this toprung has it no more
    before : name of the rung before it; empty for the first
    source, diff : HTML, escaped already
    measured : a row a problem and variant, as the stairs have them
    code : its main loop by instruction, from its machine code at ``at``
    levels : what each level of the device allows
    """

    ident: str
    name: str
    idea: str
    precision: str
    rung: Rung | None
    before: str
    source: str
    diff: str
    measured: Sequence[Row]
    unit: str
    code: MachineCode | None = None
    mix: Sequence[Bar] = ()
    levels: Sequence[Bar] = ()
    bound: str = ""
    advice: str = ""
    at: str = ""


def pages(views: Views, limits: Limits, name: str) -> Iterator[Page]:
    """Every rung of a ladder that was measured."""
    keys = [k for k in views.of if k[0] == name]
    rows = [row for k in keys for row in stair_rows(k, views.of[k], limits)]
    taken = {(k, m.competitor["name"], m.competitor["variant"]): m for k in keys for _, m in views.of[k]}
    unit = next((m.measured_in for m in taken.values()), "GFLOP/s")
    first = views.first(name)
    try:
        known = {r.name: r for r in ladder(name).rungs}
    except ToprungError:
        known = {}
    ordered = sorted(known.values(), key=lambda r: r.number)
    names = {m.competitor["name"]: m.competitor for m in taken.values() if m.competitor["kind"] == "rung"}
    for who in sorted(names.values(), key=lambda w: (w["number"], w["name"])):
        of = known.get(who["name"])
        before = next((r for r in reversed(ordered) if r.number < who["number"]), None)
        own = [r for r in rows if r.get("open") == page_of(who["name"])]
        m = taken.get((first, who["name"], "")) if first else None
        m = m or next((m for (_, n, v), m in taken.items() if n == who["name"] and not v), None)
        code = limits.code(m, first[1]) if m and first else None
        found = limits.bound(m, first[1]) if m and first else None
        levels, most, advice = _levels(found, m, limits.figures) if found else ((), "", "")
        yield Page(
            page_of(who["name"]), who["name"], who["idea"], who["precision"], of, before.name if before and of else "", _source(of),
            _diff(before, of), own, unit, code, _mix(code) if code else (), levels, most, advice,
            f"{first[2]} through {first[1]}" if first else "",
        )  # fmt: skip


def _text(of: Rung | None) -> str:
    return of.source.read_text("utf-8") if of and of.source.suffix != ".cubin" else ""


def _source(of: Rung | None) -> str:
    """A rung's text, its words in spans."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import CudaLexer

    text = _text(of)
    return str(highlight(text, CudaLexer(stripnl=False), HtmlFormatter(nowrap=True))) if text else ""


def _diff(before: Rung | None, of: Rung | None) -> str:
    """Return what changed since the rung before, a span a line."""
    from markupsafe import escape

    if before is None or of is None or not (_text(before) and _text(of)):
        return ""
    lines = difflib.unified_diff(
        _text(before).splitlines(), _text(of).splitlines(), before.source.name, of.source.name, n=3, lineterm=""
    )
    kinds = {"+": "add", "-": "del", "@": "at"}
    return "\n".join(f'<span class="{kinds.get(line[:1], "same")}">{escape(line)}</span>' for line in lines)


def _mix(code: MachineCode) -> list[Bar]:
    """The main loop by class of instruction, the most frequent first; of a kernel without a loop all its instructions."""
    counts = dict(code.loop.counts or code.counts)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    whole, most = sum(counts.values()), max(counts.values(), default=1)
    bars = [Bar(kind, f"{n:,}", n / most, f"{100 * n / whole:.1f} %") for kind, n in ordered[:SHOWN]]
    if rest := sum(n for _, n in ordered[SHOWN:]):
        bars.append(Bar("others", f"{rest:,}", rest / most, f"{100 * rest / whole:.1f} %"))
    return bars


def _levels(found: Bound, m: Measurement | None, figures: Figures | None) -> tuple[list[Bar], str, str]:
    """Every level's time as a part of the bound's, the bound in words, and what would have to change."""
    slowest, bars = found.seconds, []
    for level in found.levels:
        if isinstance(level.seconds, Unknown):
            bars.append(Bar(level.name, "?", 0.0, str(level.seconds)))
            continue
        part = 0.0 if isinstance(slowest, Unknown) or not slowest else level.seconds / slowest
        most = rate(found.work, level.seconds)
        text = "–" if isinstance(most, Unknown) or most == float("inf") else f"{most:,.0f}"
        strong = found.limiter is not None and level.name == found.limiter.name
        bars.append(Bar(level.name, text, part, level.counted, strong))
    most = found.figure
    words = str(most) if isinstance(most, Unknown) else f"{most:,.0f} {found.work.unit}"
    return (
        bars,
        words + (f", limited by {found.limiter.name}" if found.limiter else ""),
        next_step(found, m, figures) if figures else "",
    )
