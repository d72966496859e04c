"""What the tuner found, as tables in Markdown: a run, the check of its promise, strategies on recorded times."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.blas.choose import Choice, by_model, preferred, problem_class
from toprung.blas.problems import call_of, problem_of
from toprung.device import Device
from toprung.errors import BadRecord, UnknownName
from toprung.report.tune import choice_text
from toprung.results import problem_name, read
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.tune.trial import choice_of

WITHIN = 1.05
AT = (5, 10, 20, 40, 80)
"""Evaluations after which strategies are compared."""


def block(words: Sequence[str], root: Path) -> str:
    """``search``, ``run``, ``check`` or ``routes`` and a record."""
    from toprung.report.markdown import source_line

    what, *paths = words
    if what not in BLOCKS:
        raise UnknownName("table of the tuner", what, BLOCKS)
    if not paths:
        return "Not measured yet."
    kind, make = BLOCKS[what]
    record = read(root / paths[0])
    if record.get("kind") != kind:
        raise BadRecord(f"{paths[0]} is a record of kind {record.get('kind')!r}, not {kind!r}")
    return "\n".join([*make(record), "", source_line(paths[0], record, "Measured")])


def _search(record: Mapping[str, Any]) -> list[str]:
    lines = [
        f"| product | strategy | {' | '.join(f'after {n}' for n in AT)} |", "|---|---|" + "---:|" * len(AT),
    ]  # fmt: skip
    for product, shares in record["shares"].items():
        for name, values in shares.items():
            cells = (f"{values[n - 1]:.3f}" if n <= len(values) else "" for n in AT)
            lines.append(f"| {product} | {name} | {' | '.join(cells)} |")
    return [*lines, "", "Speed of the best so far as a share of the best of the sample, the mean over seeds."]


def _run(record: Mapping[str, Any]) -> list[str]:
    lines = ["| problem | best | × untuned (95 %) | × the vendor's | tried |", "|---|---|---:|---:|---:|"]
    gains, rivals = [], []
    for shape in record["shapes"]:
        gain, finals = shape["gain"], shape["finals"]
        best = _median(finals.get("best"))
        vendor = next((m for n in ("cublas", "numpy") if (m := _median(finals.get(n))) < math.inf), math.inf)
        rival = vendor / best if math.isfinite(vendor) and math.isfinite(best) else None
        gains += [gain["value"]] if gain else []
        rivals += [rival] if rival else []
        name = problem_name(shape["problem"]) + (" (gemv)" if shape["problem"]["routine"] == "gemv" else "")
        found = choice_text(choice_of(shape["best"])) if shape["best"] else ""
        text = f"{gain['value']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})" if gain else ""
        tried = sum(shape["counts"].values())
        lines.append(f"| {name} | `{found}` | {text} | {f'{rival:.2f}' if rival else ''} | {tried} |")
    means = [f"{t} {statistics.geometric_mean(v):.3f}" for t, v in (("× untuned", gains), ("× the vendor's", rivals)) if v]
    each = record["configurations"] / record["seconds"] if record["seconds"] else 0.0
    last = f"{record['configurations']} configurations in {record['seconds']:.0f} s, {each:.1f} a second."
    return [*lines, "", f"Geometric means: {', '.join(means)}. " * bool(means) + last]


def _check(record: Mapping[str, Any]) -> list[str]:
    classes: dict[str, list[Mapping[str, Any]]] = {}
    for one in record["shapes"]:
        classes.setdefault(one["class"].split()[0], []).append(one)
    lines = ["| class | shapes | within the promise | median | worst |", "|---|---:|---:|---:|---:|"]
    for name, found in sorted(classes.items()):
        ratios = sorted(one["ratio"]["value"] for one in found if one["ratio"])
        kept = sum(not one["broken"] and not one["trouble"] for one in found)
        middle, worst = (f"{ratios[len(ratios) // 2]:.3f}", f"{ratios[-1]:.3f}") if ratios else ("", "")
        lines.append(f"| {name} | {len(found)} | {kept} | {middle} | {worst} |")
    return [*lines, "", f"Time of what runs / time of the best measured beside it; promised is {record['within']:g}."]


@dataclass(frozen=True)
class Drawn:
    """A drawn shape with what was measured of it (``benchmarks/routes.py``).

    Attributes
    ----------
    timed : choices that were right, and their median seconds; first what the model took then
    held : whether the model's numbers were fitted without it
    """

    problem: Gemm | Gemv
    timed: Sequence[tuple[Choice, float]]
    held: bool

    def seconds(self, choice: Choice) -> float | None:
        """What was measured of a choice, its switches that are no part of the tile apart; None where it was not tried."""
        return min((s for c, s in self.timed if (c.kernel, c.tile) == (choice.kernel, choice.tile)), default=None)

    def shares(self, choice: Choice) -> float | None:
        """The same over the best of all."""
        found = self.seconds(choice)
        return None if found is None else found / min(s for _, s in self.timed)


def drawn(record: Mapping[str, Any]) -> list[Drawn]:
    """Every shape of a record of ``benchmarks/routes.py``."""
    choices, found = [choice_of(c) for c in record["choices"]], []
    for one in record["shapes"]:
        timed = [(choices[n], statistics.median(s)) for n, status, s in one["measured"] if status == "right" and s]
        if timed:
            problem = problem_of(one["problem"])
            found.append(Drawn(problem, timed, held_out(problem)))
    return found


def held_out(problem: Gemm | Gemv) -> bool:
    """Whether a shape is in the third to which the model is not fitted: by a hash, so always the same."""
    return int(hashlib.sha256(str(problem.describe()).encode()).hexdigest(), 16) % 3 == 0


def device_of(record: Mapping[str, Any]) -> Device:
    """A record's GPU, as far as the model asks."""
    d = record["environment"]["device"]
    return Device(
        "cuda:0", d["backend"], d["name"], "NVIDIA", "", "", d["kind"], d["compute_units"], d["clock_mhz"], 128, 49152, 1 << 36,
        1 << 36, 1024, (1024, 1024, 64), 256, (1, 2, 4), 32, d["arch"],
    )  # fmt: skip


def now(device: Device, problem: Gemm | Gemv) -> Choice:
    """What runs where no store says anything and cuBLAS is installed."""
    call = call_of(problem)
    return by_model(device, call) if preferred(device, call) else Choice("cublas", None)


def _routes(record: Mapping[str, Any]) -> list[str]:
    device, classes = device_of(record), dict[str, list[tuple[float | None, ...]]]()
    for one in drawn(record):
        if one.held:
            ways = (one.timed[0][0], Choice("cublas", None), now(device, one.problem))
            classes.setdefault(problem_class(call_of(one.problem)), []).append(tuple(one.shares(way) for way in ways))
    lines = ["| class | shapes | ours before | always cuBLAS | now | of them not measured |", "|---|---:|---:|---:|---:|---:|"]
    everything = [s for found in classes.values() for s in found]
    for title, shares in [*sorted(classes.items()), ("all", everything)]:
        columns = [[s for s in column if s is not None] for column in zip(*shares, strict=True)]
        cells = (f"{sum(s <= WITHIN for s in c)} of {len(c)}, {max(c, default=1):.2f}" for c in columns)
        lines.append(f"| {title} | {len(shares)} | {' | '.join(cells)} | {len(shares) - len(columns[-1])} |")
    return [
        *lines,
        "",
        f"Shapes within {WITHIN:g} of the best of all that was measured, and the worst; medians of the recorded times.",
    ]


def _median(final: Mapping[str, Any] | None) -> float:
    return statistics.median(final["seconds"]) if final and final["seconds"] and final["status"] == "right" else math.inf


BLOCKS = {"search": ("search", _search), "run": ("tune", _run), "check": ("tune-check", _check), "routes": ("routes", _routes)}
"""By the marker's second word: the kind of record, and what makes the table."""
