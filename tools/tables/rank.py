"""The model that ranks tiles beside what was measured: a Markdown table, and a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tables.common import source_line
from toprung.errors import BadRecord
from toprung.gemm.desc import GemmDesc, described
from toprung.lab.bounds.arch import card
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.rank import Code, Machine, machine, predict
from toprung.lab.harness.results import read
from toprung.lab.probe import store
from toprung.report.plot import check, matplotlib_pyplot, save
from toprung.tile import Tile

CHOSEN, SPILLED, FIRST = "#3182bd", "#bdbdbd", "#d95f0e"


Numbers = NDArray[np.float64]

TOP = 10
"""Number of tiles that a tuner tries first."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of a model's predictions with measured times.

    Attributes
    ----------
    spearman, quartile : rank correlation of all tiles, and of the quartile with the fastest measured times
    top : best measured time among the model's ``TOP`` first tiles / best measured time of all
    spread : standard deviation of the natural logarithm of measured / predicted
    """

    spearman: float
    quartile: float
    top: float
    spread: float


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """Return the agreement of predicted with measured seconds of the same tiles."""
    p, m = np.array(predicted), np.array(measured)
    fast = np.argsort(m, kind="stable")[: len(m) // 4]
    first = np.argsort(p, kind="stable")[:TOP]
    return Agreement(spearman(p, m), spearman(p[fast], m[fast]), float(m[first].min() / m.min()), float(np.std(np.log(m / p))))


def spearman(a: Numbers, b: Numbers) -> float:
    """Return the rank correlation of two sequences; equal values share the mean of their ranks."""
    x, y = (np.array([np.sum(v < one) + (np.sum(v == one) - 1) / 2 for one in v]) for v in (a, b))
    return float(np.corrcoef(x, y)[0, 1])


@dataclass(frozen=True)
class Timed:
    """One timed tile of a result file of ``benchmarks/rank.py``."""

    tile: Tile
    options: Mapping[str, int]
    code: Code
    seconds: float


def timed(record: Mapping[str, Any]) -> Iterator[tuple[GemmDesc, list[Timed]]]:
    """Yield each problem of a result file of ``benchmarks/rank.py`` with the tiles that were timed.

    Raises
    ------
    BadRecord
        the file is of another kind, or damaged
    """
    try:
        for entry in record["problems"]:
            p = entry["problem"]
            rows = [
                Timed(Tile(**t["tile"]), t["options"], Code.read(t["code"]), statistics.median(t["seconds"]))
                for t in entry["tiles"]
                if t["seconds"]
            ]
            yield cast(GemmDesc, described({"routine": "gemm", **p})), rows
    except (KeyError, TypeError) as error:
        raise BadRecord(f"this is no record of ranked tiles ({type(error).__name__}: {error}): run benchmarks/rank.py") from None


def predictions(on: Machine, desc: GemmDesc, rows: Sequence[Timed], compiled: bool = True) -> list[float]:
    """Return the predicted seconds of timed tiles, from the ``compiled`` code, or from the configuration."""
    return [predict(on, desc, t.tile, t.options, t.code if compiled else None).seconds for t in rows]


WITHOUT: Mapping[str, Callable[[Machine, Code], tuple[Machine, Code]]] = MappingProxyType({
    "turns of shared memory": lambda on, code: (replace(on, shared=math.inf), code),
    "registers of one bank": lambda on, code: (on, replace(code, extra_cycles=0)),
    "spills": lambda on, code: (on, replace(code, local_accesses=0, instructions=code.instructions - code.local_accesses)),
    "latencies and barriers": lambda on, code: (
        replace(on, waits=dict.fromkeys(on.waits, 0.0), barriers=dict.fromkeys(on.barriers, 0.0)), code
    ),
    "the shared cache and memory": lambda on, code: (
        replace(on, near=math.inf, far=math.inf, near_copy=math.inf, far_copy=math.inf), code
    ),
})  # fmt: skip
"""Ablations of the model: functions, by part, that remove the device's limit or the code's need of it."""


def without(part: str, on: Machine, desc: GemmDesc, rows: Sequence[Timed]) -> list[float]:
    """Return the predicted seconds of timed tiles by the model without one of its parts (see ``WITHOUT``)."""
    changed = [(t, *WITHOUT[part](on, t.code)) for t in rows]
    return [predict(other, desc, t.tile, t.options, code).seconds for t, other, code in changed]


def machine_of(path: Path) -> Machine:
    """The device of a probe record, with what its vendor says of the last cache.

    Raises
    ------
    BadRecord
        a probe that lacks what the model needs
    """
    measured = store.figures(store.read(path))
    _, cache, source = card(measured.name)
    found = machine(measured.or_else(Figures(measured.name, measured.arch, l2_bytes=cache, source=source)))
    if isinstance(found, Unknown):
        raise BadRecord(f"{path} lacks {', '.join(found.missing)}: run toprung probe")
    return found


def block(words: Sequence[str], root: Path) -> str:
    """A record of benchmarks/rank.py, one of the probe: how well the model orders the tiles, whole and less each of its parts."""
    if len(words) < 2:
        return "Not measured yet."
    record, on = read(root / words[0]), machine_of(root / words[1])
    problems = list(timed(record))
    rows: dict[str, list[Agreement]] = {}
    for product, tiles in problems:
        measured = [t.seconds for t in tiles]
        rows.setdefault("with what the compiler made", []).append(agreement(predictions(on, product, tiles), measured))
        rows.setdefault("before compiling", []).append(agreement(predictions(on, product, tiles, False), measured))
        for part in WITHOUT:
            rows.setdefault(f"without {part}", []).append(agreement(without(part, on, product, tiles), measured))
    heads = [f"{p.M}" if p.M == p.N == p.K else f"{p.M}×{p.N}×{p.K}" for p, _ in problems]
    columns = "".join(f" {h}: all | fastest quartile | best of the first {TOP} | spread |" for h in heads)
    lines = [f"| seed {record['seed']} |{columns}", "|---|" + "---:|---:|---:|---:|" * len(heads)]
    for name, found in rows.items():
        cells = [c for a in found for c in (f"{a.spearman:.3f}", f"{a.quartile:.3f}", f"{a.top:.3f}", f"{a.spread:.3f}")]
        lines.append("| " + " | ".join((name, *cells)) + " |")
    counts = ", ".join(f"{len(t)} tiles ({sum(x.code.local_accesses > 0 for x in t)} spill)" for _, t in problems)
    return "\n".join([
        *lines, "",
        f"{counts}. Rank correlation (Spearman) of predicted and measured seconds, over all tiles and over the fastest quartile as "
        f"measured; the best measured time among the model's first {TOP} over the best of all; standard deviation of the logarithm "
        "of measured over predicted." + _described(record) + "  ",
        source_line(words[0], record), source_line(words[1], store.read(root / words[1])),
    ])  # fmt: skip


def _described(record: dict[str, Any]) -> str:
    """That the compiler's part is younger than the times."""
    again = record.get("described")
    return f" The code was compiled and described again on {again['date'][:10]} (commit {again['commit']})." if again else ""


def scatter(record: dict[str, Any], probe: Path, path: Path) -> None:
    """Draw measured over predicted seconds, a panel a problem; the model's first tiles and those that spill stand out."""
    check(path)
    on, problems, plt = machine_of(probe), list(timed(record)), matplotlib_pyplot()
    figure, axes = plt.subplots(1, len(problems), figsize=(4.6 * len(problems), 4.4), layout="constrained", squeeze=False)
    for panel, (product, tiles) in zip(axes[0], problems, strict=True):
        predicted = predictions(on, product, tiles)
        first = set(sorted(range(len(tiles)), key=lambda i: predicted[i])[:TOP])
        groups = (
            ("spills", SPILLED, False, True),
            ("fits its registers", CHOSEN, False, False),
            (f"the first {TOP}", FIRST, True, None),
        )
        for label, color, leading, spills in groups:
            chosen = [
                i for i, t in enumerate(tiles) if (i in first) == leading and (leading or (t.code.local_accesses > 0) == spills)
            ]
            panel.scatter(
                [1e6 * predicted[i] for i in chosen], [1e6 * tiles[i].seconds for i in chosen], s=9, color=color, label=label
            )
        ends = [1e6 * f(f(predicted), f(t.seconds for t in tiles)) for f in (min, max)]
        panel.plot(ends, ends, color="#444444", linewidth=0.8, linestyle="--")
        panel.set(xscale="log", yscale="log", xlabel="predicted µs", ylabel="measured µs")
        panel.set_title(f"{product.M}×{product.N}×{product.K}", loc="left", fontsize=10)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=8, frameon=False)
    save(figure, path)


TABLES = {"rank": block}
