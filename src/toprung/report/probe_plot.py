"""The paper's Figure 2 from a probe record: instructions issued over the share of loads from shared memory, by width."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord
from toprung.report.plot import check, matplotlib_pyplot, save

COLORS = {1: "#3182bd", 2: "#31a354", 4: "#d95f0e"}


def mixes(record: Mapping[str, Any], path: Path) -> None:
    """Draw thread instructions per clock and multiprocessor over multiply-adds to one load, a curve for each width.

    The dashed line beside a curve is what the two limits by themselves would allow: the loads at their own rate, and the most that
    was issued of anything.

    Raises
    ------
    BadRecord
        the mixes were not measured on this device
    """
    check(path)
    found = [p for p in record["probe"] if p["benchmark"] == "ffma_lds" and p["value"] is not None]
    if not found:
        raise BadRecord("no multiply-adds beside loads from shared memory were measured: a CUDA device can")
    plt = matplotlib_pyplot()
    figure, axes = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
    most = max(p["value"] for p in found)
    for width in sorted({p["params"]["W"] for p in found}):
        points = sorted((p["params"]["RATIO"], p["value"]) for p in found if p["params"]["W"] == width)
        color = COLORS.get(width, "#444444")
        ratios = [r for r, _ in points]
        axes.plot(ratios, [v for _, v in points], color=color, marker="o", markersize=3.5, label=f"LDS.{32 * width}")
        if ratios[0] == 0:
            axes.plot(ratios, [min(most, points[0][1] * (r + 1)) for r in ratios], color=color, linestyle="--", linewidth=0.8)
    device = record["environment"]["device"]
    axes.set_title(f"multiply-adds to one load on {device['short_name']}", loc="left", fontsize=10)
    axes.set_xlabel("FFMA : LDS")
    axes.set_ylabel("thread instructions per clock and SM")
    axes.set_ylim(bottom=0)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    save(figure, path)
