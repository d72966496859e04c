"""Comparisons and accuracy sweeps as pictures, made from records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.lab.harness.accuracy import Graded
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import competitor_name, problem_name
from toprung.oracle.precision import PRECISIONS
from toprung.report import plot

SHOWN = ("uniform", "normal", "positive", "phi1", "phi4", "T1", "huge-row", "cancelling")
"""Distributions an accuracy plot has a panel for, where they were swept."""

TINY = 1e-3
"""Stands for a grade ratio of zero on a logarithmic axis."""


def record(content: Mapping[str, Any], path: Path) -> None:
    """Draw whatever a record holds: a ladder, a comparison or an accuracy sweep."""
    measurements: Sequence[Measurement] = content["measurements"]
    if content.get("graded"):
        accuracy(content, path)
    elif content.get("kind") == "bench" or not measurements:
        bench(content, path)
    else:
        plot.pictures(dict(content), path)


def bench(content: Mapping[str, Any], path: Path) -> None:
    """Speed of every competitor over the problems, a line style a precision path."""
    measurements = [m if isinstance(m, Measurement) else Measurement.read(m) for m in content["measurements"]]
    device = content["environment"]["device"]
    scale, unit = (1e3, "TFLOP/s") if device["kind"] == "gpu" else (1.0, "GFLOP/s")
    problems = list(dict.fromkeys(problem_name(m.problem) for m in measurements))
    squares = all(len({m.problem[k] for k in "MNK"}) == 1 for m in measurements)  # then the sizes are an axis, else they are names
    lines: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for m in measurements:
        kind = problem_name(m.problem).partition(" ")[2] if squares else ""
        lines.setdefault((competitor_name(m.competitor), m.competitor["precision"], kind, m.mode), []).append(m)

    def draw(axes: Any, _figure: Any) -> None:
        for i, ((who, precision, kind, mode), own) in enumerate(lines.items()):
            beside = 0.5 * (i / len(lines) - 0.5)
            xs = [m.problem["M"] if squares else problems.index(problem_name(m.problem)) + beside for m in own]
            ys = [m.gflops / scale for m in own]
            low = [y - m.flops / max(m.seconds) / 1e9 / scale for y, m in zip(ys, own, strict=True)]
            high = [m.flops / min(m.seconds) / 1e9 / scale - y for y, m in zip(ys, own, strict=True)]
            style = ("-" if PRECISIONS[precision].accurate else ":") if squares else "none"
            label = " ".join(filter(None, (who, f"[{precision}]", kind, "" if mode == "warm" else mode)))
            axes.errorbar(
                xs, ys, yerr=[low, high], linestyle=style, marker="o", markersize=3.5, capsize=2, linewidth=1.3, label=label,
                color=f"C{i}" if len(lines) <= 10 else plot.matplotlib_pyplot().get_cmap("turbo")(i / len(lines)),
            )  # fmt: skip
        if squares:
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes := sorted({m.problem["M"] for m in measurements}), [str(n) for n in sizes], fontsize=8)
            axes.minorticks_off()
            axes.set_xlabel("M = N = K")
        else:
            axes.set_xticks(range(len(problems)), problems, rotation=35, ha="right", rotation_mode="anchor", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)

    _draw(content, path, draw, "medians; bars: all samples; dotted: weaker than fp32")


def accuracy(content: Mapping[str, Any], path: Path) -> None:
    """Grade ratio over K, a panel a distribution, a line a competitor."""
    graded = [g if isinstance(g, Graded) else Graded.read(g) for g in content["graded"]]
    names = list(dict.fromkeys(competitor_name(g.competitor) for g in graded))
    there = {g.distribution for g in graded}
    shown = [d for d in SHOWN if d in there] or sorted(there)

    def draw(axes: Any, figure: Any) -> None:
        axes.remove()
        columns = min(4, len(shown))
        panels = figure.subplots(-(-len(shown) // columns), columns, sharex=True, sharey=True, squeeze=False)
        for panel, distribution in zip(panels.flat, shown, strict=False):
            for name in names:
                own = [g for g in graded if competitor_name(g.competitor) == name and g.distribution == distribution and g.verdict]
                points = [(g.problem["K"], max(g.verdict.grade, TINY)) for g in own if g.verdict]
                panel.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2, label=name) if points else None
            panel.set_title(distribution, fontsize=9)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.grid(color="#dddddd", linewidth=0.6)
        for panel in panels.flat[len(shown) :]:
            panel.remove()
        for panel in panels[-1]:
            panel.set_xlabel("K", fontsize=9)
        figure.supylabel("grade ratio", fontsize=9)
        figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)

    _draw(content, path, draw, "grade ratio", size=(10, 6))


def _draw(
    content: Mapping[str, Any], path: Path, draw: Callable[[Any, Any], None], note: str, size: tuple[float, float] = (9, 4.8)
) -> None:
    plot.check(path)
    import matplotlib.pyplot as plt

    device = content["environment"]["device"]
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    title = f"{device['short_name']} ({device['backend']}), {note}"
    if not (content["measurements"] or content.get("graded")):
        axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes)
    else:
        draw(axes, figure)
    if figure.axes and axes in figure.axes:
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        figure.suptitle(title, fontsize=10)
    plot.save(figure, path)
