"""Progress of the tuner on the terminal, and a picture of its best so far over time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from toprung.device import cores
from toprung.lab.harness.results import problem_name
from toprung.lab.harness.stats import Interval
from toprung.oracle.problem import Problem
from toprung.report import names, plot
from toprung.report.grid import Column, Grid
from toprung.report.text import scatter_text
from toprung.store.entry import NOISY
from toprung.tune.check import HOST_LIMITED, WITHIN, Checked
from toprung.tune.session import Shape, Tuner

STATES = {"waiting": "", "running": "searching …", "done": "out of time", "exhausted": "all tried", "failed": "FAILED"}


def rate(problem: Problem, seconds: float) -> str:
    """Return a problem's rate as text, in GFLOP/s or GB/s; empty where the seconds are unknown."""
    if not math.isfinite(seconds) or seconds <= 0:
        return ""
    amount = problem.min_bytes if problem.measured_in == "GB/s" else problem.flops
    return f"{amount / seconds / 1e9:,.0f} {problem.measured_in}"


def name(problem: Problem) -> str:
    """Return a problem's name as a person writes it, with the routine if that is not gemm."""
    text = problem_name(problem.describe())
    return text if problem.routine == "gemm" else f"{problem.routine} {text}"


def counts_text(shape: Shape) -> str:
    """Return the number of right configurations, and of the others by status, as text."""
    others = [f"{n} {status}" for status, n in sorted(shape.counts.items()) if status != "right"]
    return ", ".join([str(shape.counts["right"]), *others, *([f"{shape.discarded} by bound"] if shape.discarded else [])])


def gain_text(shape: Shape) -> str:
    """Return the speed of the best / that of the untuned candidate as text, with its interval where it was compared."""
    if shape.gain is not None:
        return f"{shape.gain.value:.2f} ({shape.gain.low:.2f}–{shape.gain.high:.2f})"
    known = math.isfinite(shape.untuned) and math.isfinite(shape.best)
    return f"{shape.untuned / shape.best:.2f}" if known else ""


def summary(tuner: Tuner) -> str:
    """Return one line on the whole run."""
    done = sum(s.state in ("done", "exhausted", "failed") for s in tuner.shapes)
    each = tuner.tried / tuner.elapsed if tuner.elapsed else 0.0
    bad = sum(n for s in tuner.shapes for status, n in s.counts.items() if status != "right")
    return (
        f"{counted(done, len(tuner.shapes))}, {configurations(tuner)} ({bad} not right) in {tuner.elapsed:.0f} s, "
        f"{each:.1f} of them a second"
    )


def counted(done: int, count: int) -> str:
    """Return the number of shapes that are over, of all, as text."""
    return f"{done} of {count} shape{'s' * (count != 1)}"


def configurations(tuner: Tuner) -> str:
    """Return the number of configurations tried, as text."""
    return f"{tuner.tried} configuration{'s' * (tuner.tried != 1)}"


def unbegun(shape: Shape) -> bool:
    """Return True if nothing is known of a shape yet."""
    return shape.state == "waiting" and not shape.tried and shape.candidate is None


def progress_table(tuner: Tuner, over: bool = False) -> Grid:
    """Return a table with a row for each shape: the best so far, its gain, and the number of configurations tried by status.

    ``over``: the run is, and shapes that it did not reach have no row.
    """
    several = len({s.machine for s in tuner.shapes}) > 1
    cold = any(cold_of(s) for s in tuner.shapes)
    grid = Grid(summary(tuner), [
        Column("shape", right=False), *[Column("device", 1, right=False)] * several, Column("best so far"), Column(names.SPREAD),
        Column("× untuned (95 %)"), *[Column("cold", 4)] * cold, Column("configuration", 2, right=False),
        Column("tried", 3, right=False), Column("state", 1, right=False),
    ])  # fmt: skip
    for s in [s for s in tuner.shapes if not (over and unbegun(s))]:
        grid.add({
            "shape": shape_name(s), "device": str(s.machine), "best so far": rate(s.problem, s.best), names.SPREAD: spread_of(s),
            "× untuned (95 %)": gain_text(s), "cold": rate(s.problem, cold_of(s)), "configuration": str(s.candidate or ""),
            "tried": counts_text(s), "state": Text(STATES[s.state], style="bold red" if s.state == "failed" else "dim"),
        })  # fmt: skip
    return grid


def line(shape: Shape) -> str:
    """Return one line on a shape, for output that is no terminal."""
    speed, spread = rate(shape.problem, shape.best), spread_of(shape)
    speed += f" ± {spread} %" if speed and spread else ""
    parts = [shape_name(shape), STATES[shape.state] or shape.state, speed, str(shape.candidate or "")]
    gain = gain_text(shape)
    return "  ".join(p for p in (*parts, f"{gain} × untuned" if gain else "", f"tried {counts_text(shape)}", shape.note) if p)


def shape_name(shape: Shape) -> str:
    """Return the name of a shape's problem, with the precision path if that is not plain fp32."""
    return name(shape.problem) + (f" {shape.precision}" if shape.precision != "fp32" else "")


def cold_of(shape: Shape) -> float:
    """Return the median seconds of the best with operands in no cache, from the last comparison; 0 if not measured."""
    best = shape.finals.get("best")
    return statistics.median(best.cold_seconds) if best and best.cold_seconds else 0.0


def spread_of(shape: Shape) -> str:
    """Return the scatter of the best's samples in the last comparison; empty before it."""
    best = shape.finals.get("best")
    return scatter_text(best.seconds) if best else ""


def noisy_line(tuner: Tuner) -> str:
    """Return a warning where samples of the last comparisons scatter, or a CPU had work before the run; empty if neither."""
    noisy = [(*s.scatter, shape_name(s)) for s in tuner.shapes if s.scatter[0] > NOISY / 2]
    signs = []
    if tuner.load > cores() / 2 and any(s.machine.backend == "opencl" for s in tuner.shapes):
        signs.append(f"its load was {tuner.load:.1f} on {cores()} cores when the run began")
    if noisy:
        most, who, where = max(noisy)
        signs.append(
            f"samples of {len(noisy)} of {len(tuner.shapes)} shapes scatter, most by ± {100 * most:.0f} % (those of {who} at "
            f"{where}; from ± {100 * NOISY:.0f} % on they are kept and not followed)"
        )
    if not signs:
        return ""
    return f"something else used this machine: {', and '.join(signs)}. End other programs and run the same command again"


def exhausted_line(shape: Shape) -> str:
    """Return one line on an exhaustive search: its coverage, and what a usual search would have missed; empty for any other."""
    if not shape.legal or shape.candidate is None:
        return ""
    covered = shape.tried + shape.discarded
    order = "all of the model's order and more" if shape.beyond else "part of the model's order"
    share = f"about {shape.legal:,} configurations ({100 * covered / shape.legal:.3g} %)"
    text = f"{shape_name(shape)}: {counts_text(shape)} of {share}, {order}; the best is {shape.candidate}"
    if shape.behind is not None and shape.ordinary is not None:
        what = f"what {shape.after} by the usual strategy had found" if shape.after else "what was stored before"
        text += f"; {what}, {shape.ordinary}, takes {_interval(shape.behind)} times as long"
    return text + (f"; untuned takes {_interval(shape.gain)}" if shape.gain is not None else "")


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f}–{found.high:.3f})"


def checked_line(found: Sequence[Checked], title: str) -> str:
    """Return one line on a path's shapes in a check: how many keep the promise, and how far the others are from the best.

    ``title``: the name of the path.
    """
    measured = [c for c in found if not c.trouble]
    kept = sum(not c.broken for c in measured)
    text = f"{title}: {kept} of {len(measured)} shapes within {100 * (WITHIN - 1):.0f} % of the best measured"
    if len(measured) < len(found):
        text += f", {len(found) - len(measured)} not measured"
    if ratios := sorted(c.ratio.value for c in measured if c.ratio):
        text += f"; the median is {ratios[len(ratios) // 2]:.3f} times as long, the worst {ratios[-1]:.3f}"
    return text


def kind_lines(found: Sequence[Checked]) -> list[str]:
    """Return a line on each kind of product of a path, the worst kind first, and one on small ones by device time alone."""
    kinds = dict.fromkeys(c.kind for c in found)
    apart = [[c for c in found if c.kind == kind] for kind in kinds]
    apart.sort(key=lambda some: sum(not (c.broken or c.trouble) for c in some) / len(some))
    lines = [checked_line(some, f"  {some[0].kind}") for some in apart]
    if ratios := sorted(c.device_ratio for c in found if c.device_ratio is not None):
        kept = sum(r <= WITHIN for r in ratios)
        lines.append(
            f"  by device time alone, below {1e6 * HOST_LIMITED:.0f} µs: {kept} of {len(ratios)} shapes within "
            f"{100 * (WITHIN - 1):.0f} % of the best; the median is {ratios[len(ratios) // 2]:.3f} times as long, the worst "
            f"{ratios[-1]:.3f}"
        )
    return lines


def check_line(one: Checked, device: str) -> str:
    """Return one line on a checked shape: what ran and why, and what would have been faster."""
    path = f" {one.precision}" if one.precision != "fp32" else ""
    head = f"{name(one.problem)}{path} on {device}: {one.selected}"
    if one.trouble:
        return f"{head}: {'wrong' if one.broken else 'not measured'}: {one.trouble}"
    assert one.ratio is not None
    if one.ratio.value <= 1:
        return f"{head}: the fastest ({one.why})"
    return f"{head}: {one.ratio.value:.3f} times as long as {one.best} ({one.why})"


CLOSE = 0.9
"""Least share from which on the vertical axis is cut: on one from zero all curves would be one line."""
LONG = 100.0
"""Seconds of a run from which on the axis of time is logarithmic beyond its first second."""


def best_over_time(records: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the speed of the best so far / that of the final best over the seconds, as the mean over shapes, a line for each run.

    ``records``: result files of ``toprung tune --json`` by label; a shape's final best is that of all files.
    """
    plot.check(path)
    plt = plot.matplotlib_pyplot()
    figure, axes = plt.subplots(figsize=(8.4, 4.6), layout="constrained")
    best: dict[str, float] = {}
    for record in records.values():
        for shape in record["shapes"]:
            key, times = _key(shape), [t[1] for t in shape["trace"] if t[1]]
            if times:
                best[key] = min(best.get(key, math.inf), *times, math.inf)
    least, last = 1.0, 0.0
    for label, record in records.items():
        xs, ys = _course(record["shapes"], best)
        least, last = min([least, *ys]), max([last, *xs])
        axes.step(xs, ys, where="post", label=label, linewidth=1.4)
    axes.set_xlabel("seconds since a shape's first measurement")
    cut, spread = least > CLOSE, max(1 - least, 0.01)
    axes.set_ylabel("speed, share of the best found (geometric mean)" + "; cut axis" * cut)
    axes.set_ylim(*((1 - 1.1 * spread, 1 + spread / 10) if cut else (0, 1.03)))
    if last > LONG:
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=0)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(records) > 1:
        axes.legend(frameon=False)
    plot.save(figure, path)


def _key(shape: Mapping[str, Any]) -> str:
    return f"{sorted(shape['problem'].items())} {shape.get('precision', 'fp32')}"


def _course(shapes: Sequence[Mapping[str, Any]], best: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Return seconds, counted for each shape from its first measurement, and at each the geometric mean over all shapes."""
    events, now = [], {}
    for shape in shapes:
        key, trace = _key(shape), [t for t in shape["trace"] if t[1]]
        if trace:
            now[key] = trace[0][1]
            events += [(when - trace[0][0], key, seconds) for when, seconds in trace]
    xs, ys = [], []
    for when, key, seconds in sorted(events):
        now[key] = min(now[key], seconds)
        xs.append(when)
        ys.append(math.exp(sum(math.log(best[k] / v) for k, v in now.items()) / len(now)))
    return xs, ys
