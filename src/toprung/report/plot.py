"""The ladder as a picture, with matplotlib (extra ``plot``): stairs for one size, curves for several."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toprung.errors import MissingExtra, UnknownName
from toprung.lab.harness.measure import Measurement
from toprung.paths import deliver, is_stream
from toprung.report.text import Limits, gflops_text, size_of

FORMATS = (".png", ".svg", ".pdf")
VENDOR = "#444444"
MARKS = "osD^vPX"


def check(path: Path) -> None:
    """Raise UnknownName for a kind of file that cannot be drawn, MissingExtra without matplotlib; before anything is measured."""
    if _kind(path) not in FORMATS:
        raise UnknownName("kind of picture", path.suffix or path.name, FORMATS)
    matplotlib_pyplot()


def _kind(path: Path) -> str:
    """Return the ending that says how a picture is written: standard output, pipes and devices get SVG."""
    return path.suffix.lower() or (".svg" if is_stream(path) else "")


def ladder(record: dict[str, Any], path: Path) -> None:
    """Draw a record of ``toprung ladder`` as .png, .svg or .pdf: GFLOP/s of each rung at one size, or over those of a sweep."""
    check(path)
    measurements = [m if isinstance(m, Measurement) else Measurement.read(m) for m in record["measurements"]]
    plt = matplotlib_pyplot()
    figure, axes = plt.subplots(figsize=(8.4, 4.6), layout="constrained")
    sizes = list(dict.fromkeys(size_of(m) for m in measurements))
    if all(s.isdecimal() for s in sizes):  # curves go from left to right in whatever order sizes were measured
        sizes.sort(key=int)
        measurements.sort(key=lambda m: int(size_of(m)))
    if not measurements:
        axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes)
    elif len(sizes) == 1:
        _stairs(axes, measurements)
    else:
        _curves(axes, measurements, sizes, plt, Limits.of(record))
    device = record["environment"]["device"]
    where = f"{device['short_name']} ({device['backend']})"
    what = measurements[0].competitor.get("ladder") or measurements[-1].competitor.get("ladder", "") if measurements else ""
    axes.set_title(f"{what}{' at ' + sizes[0] if len(sizes) == 1 else ''} on {where}", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def pictures(record: dict[str, Any], path: Path) -> list[Path]:
    """Draw a record of ``toprung ladder``: the whole ladder, and where it was swept over sizes each rung against the vendor, too.

    Return the files: ``path``, and beside it ``<stem>-r01`` and so on unless it is a pipe or a device.
    """
    ladder(record, path)
    measurements = [m if isinstance(m, Measurement) else Measurement.read(m) for m in record["measurements"]]
    drawn = [path]
    if len({size_of(m) for m in measurements}) > 1 and not is_stream(path):
        for number in sorted({m.competitor["number"] for m in measurements} - {0}):
            own = [m for m in measurements if m.competitor["number"] in (0, number)]
            drawn.append(path.with_stem(f"{path.stem}-r{number:02d}"))
            ladder({**record, "measurements": own}, drawn[-1])
    return drawn


def _stairs(axes: Any, measurements: Sequence[Measurement]) -> None:
    """A step a rung, its idea written on it, the samples as a bar, the vendor as a line to reach."""
    rungs = [m for m in measurements if m.competitor["kind"] == "rung"]
    labels, top, small = [], max(m.figure for m in measurements), min(8.0, 112 / max(len(rungs), 1))
    for x, m in enumerate(rungs):
        who = m.competitor
        axes.bar(x, m.figure, width=0.86, color="#9ecae1" if who["variant"] else "#3182bd", zorder=2)
        low, high = (m.figure * m.median / s for s in (max(m.seconds), min(m.seconds)))
        axes.plot([x, x], [low, high], color="black", linewidth=1, zorder=3)
        axes.annotate(gflops_text(m.figure), (x, high), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=small)
        labels.append(f"{who['number']}  {who['variant'] or who['idea']}")
    for m in measurements:
        if m.competitor["kind"] == "peer":
            axes.axhline(m.figure, color=VENDOR, linestyle="--", linewidth=1.2, zorder=1)
            text, how = f"{m.competitor['idea']} {m.figure:,.0f}", {"fontsize": 9, "color": VENDOR}
            axes.annotate(text, (0, m.figure), xytext=(-20, 3), textcoords="offset points", **how)
    axes.set_xticks(range(len(rungs)), labels, rotation=35, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_ylim(0, 1.12 * top)
    axes.set_ylabel(measurements[0].measured_in)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)


def _curves(axes: Any, measurements: Sequence[Measurement], sizes: Sequence[str], plt: Any, limits: Limits) -> None:
    """A curve a rung over the sizes; the limit dotted. A rung that is alone shows its variants, too.

    Neighbours differ in colour and mark: the qualitative palette of Matplotlib repeats after ten, marks after seven.
    """
    groups: dict[tuple[int, str, str], dict[str, float]] = {}
    for m in measurements:
        who = m.competitor
        groups.setdefault((who["number"], who["variant"], who["idea"]), {})[size_of(m)] = m.figure
    numbers = sorted({n for n, _, _ in groups if n})
    square = all(s.isdecimal() for s in sizes)  # then the sizes are an axis; otherwise they are names
    for (number, variant, idea), values in groups.items():
        if variant and len(numbers) > 1:
            continue
        place = numbers.index(number) if number else 0
        color = plt.get_cmap("tab10")(place % 10) if number else VENDOR
        xs = [int(s) if square else sizes.index(s) for s in values]
        line = ("-" if number else "--") if square else "none"
        axes.plot(
            xs, list(values.values()), color=color, label=f"{number}  {variant or idea}", linewidth=1.4,
            linestyle=line if not variant else ":" if square else "none", alpha=0.6 if variant else 1,
            marker=MARKS[place % len(MARKS)] if number else "_", markersize=4 if number else 12,
        )  # fmt: skip
    for name, values in _limits(measurements, limits).items():
        xs = [int(s) if square else sizes.index(s) for s in values]
        axes.plot(xs, list(values.values()), color="#d95f0e", linewidth=1, linestyle=":", label=name)
    if square:
        axes.set_ylim(bottom=0)
        axes.set_xlabel("size (square)")
    else:
        axes.set_xticks(range(len(sizes)), sizes, rotation=35 if len(sizes) > 6 else 0, fontsize=8)
        axes.set_yscale("log")
        axes.set_xlabel("size")
    axes.set_ylabel(measurements[0].measured_in)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=7.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _limits(measurements: Sequence[Measurement], limits: Limits) -> dict[str, dict[str, float]]:
    """Return the limit at each size: the peak at the median of the clocks that were read there, or what memory gave."""
    sizes = list(dict.fromkeys(size_of(m) for m in measurements))
    if any(m.units for m in measurements):
        return {}
    if measurements[0].measured_in == "GB/s":
        return {"read bandwidth": dict.fromkeys(sizes, limits.memory.read.gbytes_per_s)} if limits.memory else {}
    clocks = {s: [m.clock for m in measurements if size_of(m) == s and m.clock] for s in sizes}
    found = {s: limits.gflops_per_mhz * statistics.median(own) for s, own in clocks.items() if own and limits.gflops_per_mhz}
    return {"peak at the clock read": found} if found else {}


def save(figure: Any, path: Path) -> None:
    """Write a figure whole or not at all and close it; the same figure gives the same bytes."""
    content, kind = io.BytesIO(), _kind(path)[1:]
    plt = matplotlib_pyplot()
    with plt.rc_context({"svg.hashsalt": "toprung"}):
        figure.savefig(content, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)
    deliver(path, content.getvalue())


def matplotlib_pyplot() -> Any:
    """pyplot without a screen, or MissingExtra."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra("pictures need matplotlib: pip install 'toprung[plot]'") from None
    return plt
