"""Comparisons as tables: on the terminal while they run, and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from rich.text import Text

from toprung.lab.harness.accuracy import Graded
from toprung.lab.harness.bench import ratios
from toprung.lab.harness.compare import QUIET, Row
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import Change, competitor_name, problem_name
from toprung.lab.harness.stats import Interval
from toprung.oracle.precision import PRECISIONS
from toprung.report import names
from toprung.report.grid import Column, Grid
from toprung.report.text import gflops_text, ms_text, scatter_text


def bench_table(rows: Sequence[Row], title: str, kind: str) -> Grid:
    """A row for each competitor and mode, as far as it has got. ``kind``: of device; GPUs are given in TFLOP/s."""
    # read once: a live table is drawn by another thread, while samples come in
    taken = [(row, row.measurement) for row in rows]
    measured = [m for _, m in taken if m]
    speeds = dict(zip(map(id, measured), ratios(measured), strict=True))
    modes = len({r.mode for r in rows}) > 1
    energy, held = any(m.joules for m in measured), any(any(m.host_seconds) for m in measured)
    first, unit = next((r.who.name for r in rows if r.state not in QUIET), "first"), _unit(kind)
    against = names.times(first)
    grid = Grid(title, [
        Column("who", right=False), Column("precision", 3, right=False), *[Column("mode", right=False)] * modes,
        Column(names.MS), Column(unit), Column(names.SPREAD), Column(against), Column(names.GRADE, 2), Column("GB/s", 5),
        Column(names.FROBENIUS, 4), Column(names.CLOCK, 6), *[Column("J", 1), Column("pJ/flop", 1)] * energy,
        *[Column(names.HOST, 1)] * held,
    ])  # fmt: skip
    for row, m in taken:
        if row.state in QUIET:
            continue
        label = Text(row.precision)
        if not PRECISIONS[row.precision].accurate:
            label.stylize("yellow")
        cells: dict[str, str | Text] = {"who": row.who.name, "precision": label, "mode": row.mode}
        if row.verdict:
            cells |= {names.GRADE: f"{row.verdict.grade:.3g}", names.FROBENIUS: f"{row.verdict.frobenius:.2e}"}
        if m is None:
            cells[unit] = Text(f"{row.state} …" if not row.failed else row.state.upper(), "bold red" if row.failed else "dim")
        else:
            cells |= {
                names.MS: ms_text(m.median), unit: rate(m, kind), names.SPREAD: scatter_text(m.seconds),
                "GB/s": f"{m.min_bytes / m.median / 1e9:.4g}", against: interval_text(speeds[id(m)]),
                names.CLOCK: f"{m.clock:.0f}" if m.clock else "–",
            }  # fmt: skip
            if held and m.host is not None:
                cells[names.HOST] = ms_text(m.host)
            if m.energy is not None:
                cells["J"], cells["pJ/flop"] = f"{m.energy:.3g}", f"{m.energy / m.flops * 1e12:.3g}"
        grid.add(cells)
    return grid


def accuracy_table(graded: Sequence[Graded], title: str) -> Grid:
    """Grade ratio of every competitor on every distribution at the largest K measured; wrong ones in red.

    Sums of one sign have their bias beside it, pale where it may be by chance.
    """
    deepest = max((g.problem["K"] for g in graded), default=0)
    who = {competitor_name(g.competitor): g.competitor["precision"] for g in graded}
    heads = {name: f"{name} ({precision})" for name, precision in who.items()}
    biases = {name: f"bias, {name}" for name in who if any(g.verdict and g.verdict.bias is not None for g in graded)}
    grid = Grid(
        f"{title}: grade ratio" + f" at K = {deepest}" * bool(graded),
        [Column("inputs", right=False), *(Column(h, 1) for h in heads.values()), *(Column(h, 2) for h in biases.values())],
    )
    of = {(competitor_name(g.competitor), g.distribution): g for g in graded if g.problem["K"] == deepest}
    for distribution in dict.fromkeys(g.distribution for g in graded):
        cells: dict[str, str | Text] = {"inputs": distribution}
        for name, head in heads.items():
            g = of.get((name, distribution))
            if g is None or g.verdict is None:
                cells[head] = Text("failed" if g else "–", "bold red" if g else "dim")
            else:
                style = "" if g.verdict.right else "bold red" if g.broken else "yellow"
                cells[head] = Text(f"{g.verdict.grade:.3g}", style)
                if (off := g.verdict.bias) is not None:
                    by_chance = abs(off) <= (math.inf if g.verdict.bias_chance is None else g.verdict.bias_chance)
                    cells[biases[name]] = Text(f"{off:+.1e}", "dim" if by_chance else style)
        grid.add(cells)
    return grid


def compare_table(changes: Sequence[Change]) -> Grid:
    """Return a row for each pair, slower first."""
    grid = Grid("", [
        Column("device", 1, right=False), Column("who", right=False), Column("problem", right=False),
        Column("mode", 2, right=False),
        Column("new / old speed (95 %)"), Column("verdict", right=False),
    ])  # fmt: skip
    styles = {"slower": "bold red", "faster": "green", "same": "dim", "undecided": "dim italic"}
    for c in sorted(changes, key=lambda c: (list(styles).index(c.verdict), c.speed.value)):
        grid.add({
            "device": c.device, "who": c.competitor, "problem": c.problem, "mode": c.mode,
            "new / old speed (95 %)": interval_text(c.speed), "verdict": Text(c.verdict, styles[c.verdict]),
        })  # fmt: skip
    return grid


def measurements_table(measurements: Sequence[Measurement], title: str, kind: str) -> Grid:
    """Return a table of a record's content."""
    unit, against = _unit(kind), names.times("first")
    grid = Grid(title, [
        Column("problem", right=False), Column("who", right=False), Column("precision", 3, right=False),
        Column("mode", 4, right=False), Column(names.MS), Column(unit), Column(names.SPREAD), Column(against, 1),
        Column(names.GRADE, 2), Column(names.FROBENIUS, 5),
    ])  # fmt: skip
    for m, speed in zip(measurements, ratios(measurements), strict=True):
        grid.add({
            "problem": problem_name(m.problem), "who": competitor_name(m.competitor), "precision": m.competitor["precision"],
            "mode": m.mode, names.MS: ms_text(m.median), unit: rate(m, kind), names.SPREAD: scatter_text(m.seconds),
            against: interval_text(speed), names.GRADE: f"{m.verdict['grade']:.3g}",
            names.FROBENIUS: f"{m.verdict['frobenius']:.2e}",
        })  # fmt: skip
    return grid


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
