"""Comparisons as tables: on the terminal while they run, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from toprung.lab.harness.accuracy import Graded
from toprung.lab.harness.bench import Row, ratios
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import Change, competitor_name, problem_name
from toprung.lab.harness.stats import Interval
from toprung.oracle.precision import PRECISIONS
from toprung.report.text import gflops_text

QUIET = {"absent", "unsupported"}
"""States whose reason is said once below the table instead of in it."""


def bench_table(rows: Sequence[Row], title: str, kind: str, wide: bool = True) -> Table:
    """A row a competitor and mode, as far as it has got. ``kind``: of device; GPUs are given in TFLOP/s."""
    measured = [r.measurement for r in rows if r.measurement]
    speeds = dict(zip(map(id, measured), ratios(measured), strict=True))
    modes = len({r.mode for r in rows}) > 1
    energy, held = any(m.joules for m in measured), any(any(m.host_seconds) for m in measured)
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("who", no_wrap=True)
    table.add_column("precision", no_wrap=True)
    if modes:
        table.add_column("mode", no_wrap=True)
    first = next((r.who.name for r in rows if r.state not in QUIET), "first")
    heads = ["ms", _unit(kind), "GB/s", f"× {first} (95 %)", "grade", "Frobenius", "MHz", *(["J", "pJ/flop"] if energy else [])]
    heads += ["host ms"] if held else []
    if not wide:
        heads = [h for h in heads if h not in ("GB/s", "MHz")]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        if row.state in QUIET:
            continue
        m, label = row.measurement, Text(row.who.promise.precision)
        if not PRECISIONS[row.who.promise.precision].accurate:
            label.stylize("yellow")
        cells: dict[str, str | Text] = dict.fromkeys(heads, "")
        if row.verdict:
            cells["grade"], cells["Frobenius"] = f"{row.verdict.grade:.3g}", f"{row.verdict.frobenius:.2e}"
        if m is None:
            cells[_unit(kind)] = Text(
                f"{row.state} …" if not row.failed else row.state.upper(), "bold red" if row.failed else "dim"
            )
        else:
            cells["ms"], cells[_unit(kind)] = f"{m.median * 1e3:.4g}", rate(m, kind)
            cells["GB/s"] = f"{m.min_bytes / m.median / 1e9:.4g}"
            cells[f"× {first} (95 %)"] = interval_text(speeds[id(m)])
            cells["MHz"] = f"{m.clock:.0f}" if m.clock else "–"
            if held and m.host is not None:
                cells["host ms"] = f"{m.host * 1e3:.4g}"
            if m.energy is not None:
                cells["J"], cells["pJ/flop"] = f"{m.energy:.3g}", f"{m.energy / m.flops * 1e12:.3g}"
        table.add_row(row.who.name, label, *([row.mode] if modes else []), *(cells[h] for h in heads))
    return table


def accuracy_table(graded: Sequence[Graded], title: str) -> Table:
    """Grade ratio of every competitor on every distribution at the largest K measured; wrong ones in red."""
    deepest = max((g.problem["K"] for g in graded), default=0)
    names = list(dict.fromkeys(competitor_name(g.competitor) for g in graded))
    precisions = {competitor_name(g.competitor): g.competitor["precision"] for g in graded}
    table = Table(title=f"{title}: grade ratio at K = {deepest}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("inputs", no_wrap=True)
    for name in names:
        table.add_column(f"{name}\n{precisions[name]}", justify="right")
    for distribution in dict.fromkeys(g.distribution for g in graded):
        cells: list[Text] = []
        for name in names:
            g = next(
                (
                    g
                    for g in graded
                    if (competitor_name(g.competitor), g.distribution, g.problem["K"]) == (name, distribution, deepest)
                ),
                None,
            )
            if g is None or g.verdict is None:
                cells.append(Text("failed" if g else "–", "bold red" if g else "dim"))
            else:
                cells.append(Text(f"{g.verdict.grade:.3g}", "" if g.verdict.right else "bold red" if g.broken else "yellow"))
        table.add_row(distribution, *cells)
    return table


def compare_table(changes: Sequence[Change]) -> Table:
    """Return the rows that changed, slower first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("device", "who", "problem", "mode"):
        table.add_column(head, no_wrap=True)
    table.add_column("new / old speed (95 %)", justify="right", no_wrap=True)
    table.add_column("")
    styles = {"slower": "bold red", "faster": "green", "same": "dim"}
    for c in sorted(changes, key=lambda c: (list(styles).index(c.verdict), c.speed.value)):
        table.add_row(c.device, c.competitor, c.problem, c.mode, interval_text(c.speed), Text(c.verdict, styles[c.verdict]))
    return table


def measurements_table(measurements: Sequence[Measurement], title: str, kind: str) -> Table:
    """Return a table of a record's content."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("problem", "who", "precision", "mode"):
        table.add_column(head, no_wrap=True)
    for head in ("ms", _unit(kind), "× first (95 %)", "grade", "Frobenius"):
        table.add_column(head, justify="right", no_wrap=True)
    for m, speed in zip(measurements, ratios(measurements), strict=True):
        table.add_row(
            problem_name(m.problem), competitor_name(m.competitor), m.competitor["precision"], m.mode, f"{m.median * 1e3:.4g}",
            rate(m, kind), interval_text(speed), f"{m.verdict['grade']:.3g}", f"{m.verdict['frobenius']:.2e}",
        )  # fmt: skip
    return table


def to_csv(measurements: Sequence[Measurement]) -> str:
    """A line a measurement, for spreadsheets."""
    lines = []
    for m, speed in zip(measurements, ratios(measurements), strict=True):
        p, s = m.problem, speed or Interval(1, 1, 1)
        lines.append({
            "who": competitor_name(m.competitor), "precision": m.competitor["precision"], "problem": problem_name(p),
            **{k: p.get(k, "") for k in ("M", "N", "K", "trans", "batch")}, "mode": m.mode, "median_s": m.median, "best_s": m.best,
            "gflops": m.gflops, "gb_s": m.min_bytes / m.median / 1e9, "ratio": s.value, "ratio_low": s.low, "ratio_high": s.high,
            "grade": m.verdict["grade"], "frobenius": m.verdict["frobenius"], "joules": m.energy, "clock_mhz": m.clock,
            "host_s": m.host, "samples": len(m.seconds), "calls": m.calls,
        })  # fmt: skip
    out = io.StringIO()
    if lines:
        writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return out.getvalue()


def rate(m: Measurement, kind: str) -> str:
    """TFLOP/s on a GPU, GFLOP/s elsewhere."""
    return f"{m.gflops / 1e3:.4g}" if kind == "gpu" else gflops_text(m.gflops)


def interval_text(speed: Interval | None) -> str:
    """A ratio with its interval; a dash for what the others are compared to."""
    return "–" if speed is None else f"{speed.value:.3f} ({speed.low:.3f}–{speed.high:.3f})"


def _unit(kind: str) -> str:
    return "TFLOP/s" if kind == "gpu" else "GFLOP/s"
