"""Bounds as tables: on the terminal, as a record, and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toprung.device import Device
from toprung.errors import DAMAGE, BadRecord
from toprung.lab.bounds.figures import Unknown
from toprung.lab.bounds.levels import rate
from toprung.lab.explain import Explanation
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.report import names
from toprung.report.grid import Column, Grid
from toprung.report.text import scatter_text

CHECKED = ("Tensor Cores", "FFMA lanes", "issue slots", "register operands", "shared memory", "L1", "L2")


def overview(found: Sequence[tuple[str, Explanation]], title: str) -> Grid:
    """A ladder's rungs with their bounds, a row each."""
    limiters = {e.bound.limiter.name for _, e in found if e.bound.limiter}
    shown = [n for n in dict.fromkeys(v.name for _, e in found for v in e.bound.levels) if n in CHECKED or n in limiters]
    unit = found[0][1].bound.work.unit if found else "GFLOP/s"
    grid = Grid(f"{title}, {unit}", [
        Column("rung", right=False), Column("idea", right=False, text=True), *(Column(name, 3) for name in shown),
        Column("limiter", right=False), Column("bound"), Column("measured"), Column(names.SPREAD, 1),
        Column(names.BOUND),
    ])  # fmt: skip
    for variant, e in found:
        rates = {level.name: rate(e.bound.work, level.seconds) for level in e.bound.levels}
        grid.add({
            "rung": f"{'  ' if variant else ''}{e.rung.number}", "idea": variant or e.rung.idea,
            **{name: _short(rates.get(name, math.inf)) for name in shown},
            "limiter": e.bound.limiter.name if e.bound.limiter else "unknown",
            "bound": _short(e.bound.figure), "measured": f"{e.speed:,.0f}" if e.speed is not None else "–",
            names.SPREAD: scatter_text(e.measured.seconds) if e.measured else "–",
            names.BOUND: f"{100 * e.share:.1f}" if e.share is not None else "–",
        }, "dim" if variant else "")  # fmt: skip
    return grid


def _short(value: float | Unknown) -> str:
    return "?" if isinstance(value, Unknown) else "–" if value >= 1e7 else f"{value:,.0f}"


def bounds_record(what: str, device: Device, found: Sequence[tuple[str, Explanation]]) -> dict[str, Any]:
    """Return every bound as a record (``toprung.lab.harness.results``), with ``bounds`` and without measurements of its own."""
    notes = {f"{e.rung.name} {variant}".rstrip(): " ".join(e.notes) for variant, e in found if e.notes}
    entries = [{"variant": variant, **e.describe()} for variant, e in found]
    return results.record(what, environment(device), (), kind="bounds", notes=notes, bounds=entries)


def read_bounds(path: Path) -> dict[str, Any]:
    """A record that ``toprung explain --json`` wrote, or BadRecord."""
    content = results.read(path)
    try:
        for b in content["bounds"]:
            for key in ("rung", "number", "idea", "variant", "limiter"):
                b[key]
            for key in ("bound", "measured"):  # records of before had one unit
                b.setdefault(key, b.get(f"{key}_gflops"))
            b.setdefault("unit", "GFLOP/s")
            for key in ("bound", "measured", "share", "no_cache_gflops", "registers", "ffma_share"):
                if b[key] is not None and not 0 <= float(b[key]) < float("inf"):
                    raise ValueError(f"{b['rung']}: {key} is {b[key]}")
            str(b["figures"]["source"])
    except DAMAGE as error:
        raise BadRecord(f"{path} is no record of bounds ({type(error).__name__}: {error}): toprung explain LADDER --json") from None
    return content
