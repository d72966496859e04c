"""What the tuner found, as tables in Markdown: a run, the check of its promise, strategies on recorded times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.blas.choose import FFMA, preferred
from toprung.blas.problems import call_of
from toprung.errors import BadRecord, UnknownName
from toprung.report.tune import choice_text
from toprung.results import problem_name, read
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.tune.trial import choice_of

AT = (5, 10, 20, 40, 80)
"""Evaluations after which strategies are compared."""


def block(words: Sequence[str], root: Path) -> str:
    """``search``, ``run``, ``check`` or ``replay`` and a record."""
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
class Replayed:
    """A checked shape's recorded times, each over the best of them.

    Attributes
    ----------
    own : our kernel that the store or the model took
    open : whether the store compared nothing, so that ``choose.preferred`` decides; also where it would decide now, because a
        neighbour no longer speaks for cuBLAS against Hopper's kernel
    shares : of what ran (``ran``), cuBLAS, ours, and what would run now (``rule``)
    """

    own: str
    open: bool
    shares: Mapping[str, float]


def replayed(one: Mapping[str, Any]) -> Replayed | None:
    """What ``choose.preferred`` makes of a shape of ``toprung tune --check``; None where cuBLAS or ours was not timed."""
    timed = [(m["kernel"], statistics.median(m["seconds"])) for m in one["measured"] if m["seconds"] and m["status"] == "right"]
    cublas = next((s for kernel, s in timed if kernel == "cublas"), None)
    kernel, own = next((t for t in timed if t[0] != "cublas"), ("", None))
    if cublas is None or own is None:
        return None
    values = {k: v for k, v in one["problem"].items() if k not in ("routine", "measured_in")}
    call = call_of(Gemv(**values) if one["problem"]["routine"] == "gemv" else Gemm(**values))
    ran_theirs = one["routed"]["kernel"] == "cublas"
    undecided = not one["why"].startswith(("tuned", "measured")) or (ran_theirs and kernel == FFMA)
    takes_own = bool(preferred(call, kernel)) if undecided else not ran_theirs
    times = {"ran": cublas if ran_theirs else own, "cublas": cublas, "ours": own, "rule": own if takes_own else cublas}
    best = min(s for _, s in timed)
    return Replayed(kernel, undecided, {name: s / best for name, s in times.items()})


def _replay(record: Mapping[str, Any]) -> list[str]:
    names, within = ("ran", "cublas", "ours", "rule"), record["within"]
    classes: dict[str, list[Mapping[str, float]]] = {}
    for one in record["shapes"]:
        if found := replayed(one):
            classes.setdefault(one["class"].split()[0], []).append(found.shares)
    lines = ["| class | shapes | what ran | always cuBLAS | always ours | the rule now |", "|---|---:|---:|---:|---:|---:|"]
    everything = [s for found in classes.values() for s in found]
    for title, shares in [*sorted(classes.items()), ("all", everything)]:
        cells = (f"{sum(s[n] <= within for s in shares)}, {max(s[n] for s in shares):.2f}" for n in names)
        lines.append(f"| {title} | {len(shares)} | {' | '.join(cells)} |")
    return [*lines, "", f"Shapes within {within:g} of the best measured, and the worst; medians of the recorded times."]


def _median(final: Mapping[str, Any] | None) -> float:
    return statistics.median(final["seconds"]) if final and final["seconds"] and final["status"] == "right" else math.inf


BLOCKS = {"search": ("search", _search), "run": ("tune", _run), "check": ("tune-check", _check), "replay": ("tune-check", _replay)}
"""By the marker's second word: the kind of record, and what makes the table."""
