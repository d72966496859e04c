"""The paper's sweeps as a picture, with matplotlib (extra ``plot``): its Figure 1, and the potential over the tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from toprung.lab.bounds.arch import Architecture
from toprung.lab.bounds.figures import Unknown
from toprung.lab.bounds.paper import MIXES, WIDTHS, Blocking, analyse, ffma_share
from toprung.report.plot import VENDOR, check, save

__all__ = ["check", "sweep"]
COLORS = {32: "#9ecae1", 64: "#3182bd", 128: "#08306b"}


def sweep(of: Architecture, plans: Sequence[Blocking], path: Path) -> None:
    """FFMA share of the main loop, and the potential, over the register blocking factor for each width of LDS.

    What a condition refuses is drawn hollow. Where figures are missing, the second picture says which.
    """
    check(path)
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    xs = [p.TM for p in plans]
    missing: tuple[str, ...] = ()
    for w in WIDTHS:
        label = "LDS" if w == 32 else f"LDS.{w}"
        left.plot(xs, [100 * ffma_share(p.TM, p.TN, w) for p in plans], color=COLORS[w], marker="o", markersize=3.5, label=label)
        each = [analyse(of, replace(p, width=w)) for p in plans]
        known = [
            (p.TM, a.potential, a.possible is not False)
            for p, a in zip(plans, each, strict=True)
            if not isinstance(a.potential, Unknown)
        ]
        missing = next((a.potential.missing for a in each if isinstance(a.potential, Unknown)), missing)
        if known:
            right.plot([k[0] for k in known], [k[1] for k in known], color=COLORS[w], linewidth=1, label=label)
            for possible in (True, False):
                points = [k for k in known if k[2] == possible]
                face = COLORS[w] if possible else "white"
                right.plot([k[0] for k in points], [k[1] for k in points], "o", color=COLORS[w], markerfacecolor=face, markersize=4)
    if missing:
        right.text(0.5, 0.5, "unknown:\n" + "\n".join(missing), ha="center", va="center", transform=right.transAxes, fontsize=8)
    elif not isinstance(peak := of.peak_gflops, Unknown):
        right.axhline(peak, color=VENDOR, linestyle="--", linewidth=1)
        right.annotate(f"peak {peak:,.0f}", (xs[0], peak), xytext=(0, 3), textcoords="offset points", fontsize=8, color=VENDOR)
        right.set_ylim(0, 1.1 * peak)
    left.set_ylim(0, 100)
    left.set_ylabel("FFMA in the main loop, %")
    right.set_ylabel("potential, GFLOP/s (hollow: refused by a condition)")
    left.set_title("multiply-adds beside loads from shared memory", loc="left", fontsize=10)
    title = f"{of.title}, {plans[0].threads} threads, L = {plans[0].BK}" + ", mix as at B_R = 6" * (of.key in MIXES)
    right.set_title(title, loc="left", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("register blocking factor")
        axes.set_xticks(xs)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False, loc="lower right")
    save(figure, path)
