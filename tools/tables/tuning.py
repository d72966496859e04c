"""Markdown tables of the tuner's results: a run, the check of its promise, strategies on recorded times."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables.common import source_line
from tables.library import pairs
from toprung.backends import nvrtc
from toprung.device import Device
from toprung.dispatch.ranking import members, ratio, select_own
from toprung.dispatch.selection import Candidate, decoded
from toprung.errors import BadRecord, UnknownName
from toprung.gemm.classes import problem_class
from toprung.kernels.base import NoConfig, TileConfig
from toprung.kernels.tiled.family import Tiled, is_regrouped
from toprung.lab.harness.results import problem_name, read
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.problems import problem_of
from toprung.tune.rows import read as read_rows
from toprung.tune.rows import right

WITHIN = 1.05
"""Promised ratio: time of the selected candidate / time of the best one, at most."""
AT = (5, 10, 20, 40, 80)
"""Numbers of evaluations after which strategies are compared."""


def block(words: Sequence[str], root: Path) -> str:
    """Return the table of a result file.

    ``words`` are ``search``, ``run``, ``check``, ``routes``, ``exhaustive``, ``library`` or ``planning``, and the file's path.
    """
    what, *paths = words
    if what not in BLOCKS:
        raise UnknownName("table of the tuner", what, tuple(BLOCKS))
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
    cold: list[float] = []
    for shape in record["shapes"]:
        gain, finals = shape["gain"], shape["finals"]
        best = _median(finals.get("best"))
        vendor = next((m for n in ("cublas", "numpy") if (m := _median(finals.get(n))) < math.inf), math.inf)
        rival = vendor / best if math.isfinite(vendor) and math.isfinite(best) else None
        gains += [gain["value"]] if gain else []
        rivals += [rival] if rival else []
        theirs, ours = (_cold(finals.get(n)) for n in ("cublas" if "cublas" in finals else "numpy", "best"))
        cold += [theirs / ours] if theirs and ours else []
        name = _name(shape)
        found = str(decoded(shape["best"])) if shape["best"] else ""
        text = f"{gain['value']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})" if gain else ""
        tried = sum(shape["counts"].values())
        lines.append(f"| {name} | `{found}` | {text} | {f'{rival:.2f}' if rival else ''} | {tried} |")
    means = [f"{t} {statistics.geometric_mean(v):.3f}" for t, v in (("× untuned", gains), ("× the vendor's", rivals)) if v]
    each = record["configurations"] / record["seconds"] if record["seconds"] else 0.0
    if cold:
        means.append(f"× the vendor's with operands in no cache {statistics.geometric_mean(cold):.3f} ({len(cold)} products)")
    last = f"{record['configurations']} configurations in {record['seconds']:.0f} s, {each:.1f} a second."
    return [*lines, "", f"Geometric means: {', '.join(means)}. " * bool(means) + last]


def _check(record: Mapping[str, Any]) -> list[str]:
    paths = list(dict.fromkeys(_path(one) for one in record["shapes"]))
    several = len(paths) > 1
    lines = [f"| {'precision | ' * several}class | shapes | within the promise | median | worst |"]
    lines.append("|---|" + "---|" * several + "---:|---:|---:|---:|")
    for path in paths:
        mine = [one for one in record["shapes"] if _path(one) == path and not one["trouble"]]
        classes: dict[str, list[Mapping[str, Any]]] = {}
        for one in mine:
            classes.setdefault(one.get("kind", one["class"].split()[0]), []).append(one)
        for name, found in [*sorted(classes.items()), *([("all", mine)] if several else [])]:
            ratios = sorted(one["ratio"]["value"] for one in found if one["ratio"])
            kept = sum(not one["broken"] for one in found)
            middle, worst = (f"{ratios[len(ratios) // 2]:.3f}", f"{ratios[-1]:.3f}") if ratios else ("", "")
            lines.append(f"| {f'{path} | ' * several}{name} | {len(found)} | {kept} | {middle} | {worst} |")
    last = f"Time of what runs / time of the best measured beside it; promised is {record['within']:g}."
    if record.get("planning") == "measure":
        last += " Each shape was planned by measuring first; the times are of other samples."
    missing = sum(bool(one["trouble"]) for one in record["shapes"])
    return [*lines, "", last + f" {missing} more could not be measured." * bool(missing)]


def _exhaustive(record: Mapping[str, Any]) -> list[str]:
    lines = [
        "| problem | configurations | measured | not right | by bound | best | the usual search | took, of the best | untuned |",
        "|---|---:|---:|---:|---:|---|---|---:|---:|",
    ]
    for shape in record["shapes"]:
        found = shape.get("exhaustive")
        if not found:
            raise BadRecord("the run was not exhaustive: toprung tune --exhaustive")
        counts, after = shape["counts"], found["after"]
        wrong = sum(n for status, n in counts.items() if status != "right")
        usual = f"`{decoded(found['ordinary'])}`" if found["ordinary"] else ""
        usual += f" after {after}" if after and usual else " of an earlier run" if usual else ""
        times = (f"{i['value']:.3f} ({i['low']:.3f} to {i['high']:.3f})" if i else "" for i in (found["behind"], shape["gain"]))
        cells = (
            _name(shape), f"{found['legal']:,}", f"{sum(counts.values()):,}", str(wrong), f"{shape['discarded']:,}",
            f"`{decoded(shape['best'])}`" if shape["best"] else "", usual, *times,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    some = [_name(s) for s in record["shapes"] if not s["exhaustive"]["beyond_model"]]
    last = "Configurations: legal points of the space, about; times / that of the best, in turns with it in the same run."
    return [*lines, "", last + f" The model's order was not gone through to its end on {', '.join(some)}." * bool(some)]


def _library(record: Mapping[str, Any]) -> list[str]:
    """Return the table of geometric means of the library's speed / its vendor's by class, untuned and tuned, from one run."""
    shares: dict[str, dict[str, list[float]]] = {}
    for what, name in (("before", "toprung_untuned"), ("after", "toprung")):
        for theirs, ours in pairs(record["measurements"], name):
            one = shares.setdefault(str(sorted(ours.problem.items())), {"class": [], "before": [], "after": []})
            one[what] = [theirs.median / ours.median]
            one["class"] = [problem_class(problem_of(ours.problem).desc)]  # type: ignore[list-item]
    both = [one for one in shares.values() if one["before"] and one["after"]]
    if not both:
        raise BadRecord("the record has no product that toprung_untuned, toprung and another library computed")
    lines = [
        "| class | products | × the vendor's, untuned | tuned | as fast or faster, untuned | tuned |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    names = sorted({str(one["class"][0]) for one in both})
    for name in [*names, "all"]:
        found = [one for one in both if name in ("all", one["class"][0])]
        values = [[one[what][0] for one in found] for what in ("before", "after")]
        means = (f"{statistics.geometric_mean(v):.3f}" for v in values)
        least = (str(sum(x >= 1 for x in v)) for v in values)
        lines.append(f"| {name} | {len(found)} | {' | '.join((*means, *least))} |")
    return [*lines, "", "Geometric means; all three in turns, kernels of our own only."]


@dataclass(frozen=True)
class Drawn:
    """A random shape with its measurements (``benchmarks/routes.py``).

    Attributes
    ----------
    timed : right candidates with their median seconds; the first is the one that the model selected then
    held : True if the model's constants were fitted without this shape
    """

    problem: Gemm | Gemv
    timed: Sequence[tuple[Candidate, float]]
    held: bool

    def seconds(self, wanted: Candidate) -> float | None:
        """Return the measured seconds of a candidate, whatever its switches beside the tile; None if it was not tried."""
        return min(
            (s for c, s in self.timed if (c.kernel, c.encode()["tile"]) == (wanted.kernel, wanted.encode()["tile"])), default=None
        )

    def shares(self, wanted: Candidate) -> float | None:
        """Return the measured seconds of a candidate / those of the best one; None if it was not tried."""
        found = self.seconds(wanted)
        return None if found is None else found / min(s for _, s in self.timed)


def drawn(record: Mapping[str, Any]) -> list[Drawn]:
    """Return every shape of a result file of ``benchmarks/routes.py`` that has a right candidate."""
    found = []
    for one, tried in zip(record["shapes"], read_rows(record), strict=True):
        if timed := right(tried):
            problem = problem_of(one["problem"])
            found.append(Drawn(problem, timed, held_out(problem)))
    return found


def held_out(problem: Gemm | Gemv) -> bool:
    """Return True if a shape is in the third that the model is not fitted to: decided by a hash, so always the same."""
    return int(hashlib.sha256(str(problem.describe()).encode()).hexdigest(), 16) % 3 == 0


def device_of(record: Mapping[str, Any]) -> Device:
    """Return the GPU of a result file, with the properties that the model needs."""
    d = record["environment"]["device"]
    dynamic = 1024 * nvrtc.DYNAMIC_LOCAL_KB.get(nvrtc.capability(d["arch"]), 0)
    return Device(
        "cuda:0", d["backend"], d["name"], "NVIDIA", "", "", d["kind"], d["compute_units"], d["clock_mhz"], 128, 49152, 1 << 36,
        1 << 36, 1024, (1024, 1024, 64), 256, (1, 2, 4), 32, d["arch"], dynamic_local_bytes=dynamic,
    )  # fmt: skip


def now(device: Device, problem: Gemm | Gemv) -> Candidate:
    """Return the candidate that runs without any store entry where the vendor's library is installed."""
    desc, theirs = problem.desc, vendor()
    return select_own(device, desc).candidate if ratio(device, desc, theirs.family) >= 1 else theirs


def vendor() -> Candidate:
    """Return the vendor's library as a candidate, installed here or not."""
    return Candidate(members("fp32", own=False)[0], NoConfig())


def outdated(candidate: Candidate) -> bool:
    """Return True if a time of ``routes.json`` is not a candidate's any more: its lanes exchange narrow pieces of C since."""
    return isinstance(candidate.family, Tiled) and isinstance(candidate.config, TileConfig) and is_regrouped(candidate.config)


def _routes(record: Mapping[str, Any]) -> list[str]:
    device, classes = device_of(record), dict[str, list[tuple[float | None, ...]]]()
    for one in drawn(record):
        if one.held:
            today = now(device, one.problem)
            ways = one.shares(one.timed[0][0]), one.shares(vendor()), None if outdated(today) else one.shares(today)
            classes.setdefault(problem_class(one.problem.desc), []).append(ways)
    lines = ["| class | shapes | ours before | always cuBLAS | now | of them not measured |", "|---|---:|---:|---:|---:|---:|"]
    everything = [s for found in classes.values() for s in found]
    for title, shares in [*sorted(classes.items()), ("all", everything)]:
        columns = [[s for s in column if s is not None] for column in zip(*shares, strict=True)]
        cells = (f"{sum(s <= WITHIN for s in c)} of {len(c)}, {max(c, default=1):.2f}" for c in columns)
        lines.append(f"| {title} | {len(shares)} | {' | '.join(cells)} | {len(shares) - len(columns[-1])} |")
    return [
        *lines,
        "",
        f"Shapes within {WITHIN:g} of the best of all that was measured, and the worst; medians of the recorded times, "
        "which are of the kernels' texts then. "
        "An odd C is written otherwise since: what writes one now counts as not measured.",
    ]


def _path(shape: Mapping[str, Any]) -> str:
    """Return the precision path of a recorded shape; a result file from before there were several is of plain fp32."""
    return str(shape.get("precision", "fp32"))


def _name(shape: Mapping[str, Any]) -> str:
    path = f" {_path(shape)}" if _path(shape) != "fp32" else ""
    return problem_name(shape["problem"]) + (" (gemv)" if shape["problem"]["routine"] == "gemv" else "") + path


def _cold(final: Mapping[str, Any] | None) -> float:
    return statistics.median(final["cold_seconds"]) if final and final["cold_seconds"] else 0.0


def _median(final: Mapping[str, Any] | None) -> float:
    return statistics.median(final["seconds"]) if final and final["seconds"] and final["status"] == "right" else math.inf


def _planning(record: Mapping[str, Any]) -> list[str]:
    """Return the table of the seconds that first calls took (``benchmarks/planning.py``)."""
    lines = [
        "| first call of | by the cost model, s | measured, s | in a later program, s | what ran, measured |",
        "|---|---:|---:|---:|---|",
    ]
    for row in record["rows"]:
        cells = (f"{row[way]['seconds']:.3f}" if row[way] else "" for way in ("estimate", "measure", "later"))
        ran = f"`{row['measure']['kernel']}`" if row["measure"] else ""
        lines.append(f"| {_name(row)} | {' | '.join(cells)} | {ran} |")
    last = "Compiling included, and in the first row starting what measures; the first two ways from an empty store and cache."
    return [*lines, "", last]


BLOCKS = {
    "search": ("search", _search), "run": ("tune", _run), "check": ("tune-check", _check), "routes": ("routes", _routes),
    "exhaustive": ("tune", _exhaustive), "library": ("bench", _library), "planning": ("planning", _planning),
}  # fmt: skip
"""Tables by the marker's second word: the kind of result file, and the function that makes the lines."""


def chosen(paths: Sequence[str], root: Path) -> str:
    """Return how many plain fp32 choices of checks were within the promise, and how many by their times would be now.

    ``paths`` are records of ``tune --check --planning estimate``. A choice is today's on the record's GPU without any store entry.
    """
    lines = [
        "| check | shapes | within the promise as checked | now | no time of what is chosen now |",
        "|---|---:|---:|---:|---:|",
    ]
    for path in paths:
        record = read(root / path)
        device, then, ratios = device_of(record), 0, list[float | None]()
        for shape, tried in zip(record["shapes"], read_rows(record, again=False), strict=True):
            timed = dict(right(tried))
            if timed and _path(shape) == "fp32":
                took = timed.get(now(device, problem_of(shape["problem"])))
                ratios.append(took and took / min(timed.values()))
                then += not shape["broken"]
        kept, unknown = sum(r is not None and r <= WITHIN for r in ratios), ratios.count(None)
        lines.append(f"| `{path.removeprefix('results/')}` | {len(ratios)} | {then} | {kept} | {unknown} |")
    last = f"Medians of the records' times; the promise is a choice that takes at most {WITHIN:g} times as long as the best."
    return "\n".join([*lines, "", last])


TABLES = {"tune": block, "chosen": chosen}
