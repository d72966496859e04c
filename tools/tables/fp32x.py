"""Gains and costs of fp32 out of matrix units: ``fp32x``, ``fp32x_study``, ``inflight_study``, slices and odd shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tables.common import product_rows
from toprung.errors import BadRecord, UnknownName
from toprung.lab.harness.accuracy import Graded
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import read
from toprung.report.text import gflops_text, size_of


def block(words: Sequence[str], root: Path) -> str:
    """Return a table of a record; words: ``grade``, ``frobenius``, ``lost``, ``accuracy``, ``bias``, ``odd`` …, and the record."""
    makers: dict[str, Callable[[dict[str, Any]], list[str]]] = {
        "grade": functools.partial(_study, "grade", 1.0),
        "frobenius": functools.partial(_study, "frobenius", 0.0),
        "lost": _lost,
        "accuracy": _accuracy,
        "bias": _bias,
        "sustained": functools.partial(_sustained, "fp32x", "cublas", "cuBLAS fp32"),
        "burst": functools.partial(_sustained, "fp32x", "cublas", "cuBLAS fp32"),
        "slices": _slices,
        "odd": _odd,
        "matmul": functools.partial(_sustained, "toprung", "torch", "torch fp32"),
    }
    what, path = words[0], words[-1]
    if what not in makers:
        raise UnknownName("table of fp32x", what, makers)
    record = read(root / path)
    try:
        lines = makers[what](record)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise BadRecord(f"{path} is damaged ({type(error).__name__}: {error}): measure again") from None
    e = record["environment"]
    where = ", ".join(filter(None, (e["device"]["short_name"], e["device"].get("runtime"), e["date"][:10])))
    return "\n".join([*lines, "", f"{where}, commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "])


def _study(error: str, least: float, record: Mapping[str, Any]) -> list[str]:
    """A row a scheme, a column a distribution: the worst over K of an error over plain fp32's on the same data."""
    found = record["study"]
    schemes = list(dict.fromkeys(s["scheme"] for s in found))
    names = list(dict.fromkeys(s["distribution"] for s in found))
    lines = ["| scheme | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for scheme in schemes:
        cells = []
        for name in names:
            own = [s for s in found if (s["scheme"], s["distribution"]) == (scheme, name)]
            text = f"{max(s[error] / max(s[f'plain_{error}'], least) for s in own):.2g}"
            cells.append(f"({text})" if any(s["refused"] for s in own) else text)
        lines.append(f"| {scheme} | " + " | ".join(cells) + " |")
    return lines


def _lost(record: Mapping[str, Any]) -> list[str]:
    """A row an input, at the K of its largest grade in flight: that, fp32's, and elements over limits or computed again."""
    found = record["study"]
    lines = ["| input | K | in flight | fp32 | over twice that | over K + 2 | again, % |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name in dict.fromkeys(s["distribution"] for s in found):
        s = max((s for s in found if s["distribution"] == name), key=lambda s: float(s["grade"]))
        grades = f"{s['grade']:.1f} | {s['plain_grade']:.1f}"
        lines.append(f"| {name} | {s['K']} | {grades} | {s['over_twice']} | {s['over_limit']} | {100 * s['again']:.2g} |")
    return [*lines, "", f"Largest grade ratio, and elements of {found[0]['elements']:,}.  "]


def _odd(record: dict[str, Any]) -> list[str]:
    """A row a product: what toprung takes by itself, in microseconds of the device, and cuBLAS in fp32 beside it."""
    lines = [
        "| product | `matmul`, µs | cuBLAS fp32 | times as fast | error over cuBLAS's | kernel |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in product_rows(record, "odd_shapes"):
        batch, m, n, k, layout, *_ = row["shape"]
        ours, theirs = (1e6 * median(row["seconds"][name]) for name in ("default", "cublas"))
        size, error = f"{batch}×" * (batch > 1) + f"{m}×{n}×{k} {layout}", row["error"]["default"] / row["error"]["cublas"]
        lines.append(f"| {size} | **{ours:.1f}** | {theirs:.1f} | {theirs / ours:.2f} | {error:.2f} | `{row['selected']}` |")
    return lines


def _accuracy(record: Mapping[str, Any]) -> list[str]:
    """A row a distribution: the worst over K of both errors, ours beside cuBLAS's."""
    graded = [Graded.read(g) for g in record["graded"]]
    depths = sorted({int(g.problem["K"]) for g in graded})
    lines = [
        "| distribution | grade ratio, fp32x | cuBLAS fp32 | Frobenius error, fp32x | cuBLAS fp32 |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(g.distribution for g in graded):
        cells = []
        for key, digits in (("grade", ".2g"), ("frobenius", ".1e")):
            for who in ("fp32x", "cublas"):
                own = [g for g in graded if g.distribution == name and g.competitor["name"] == who and g.verdict]
                values = [getattr(g.verdict, key) for g in own]
                wrong = any(g.verdict and not g.verdict.right for g in own)
                cells.append("–" if not values else "wrong" if wrong else format(max(values), digits))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, "", f"The largest over K = {', '.join(map(str, depths))}.  "]


def _bias(record: Mapping[str, Any]) -> list[str]:
    """A row a kernel and types of operands, a column a distribution: the largest bias over all products, and its K.

    Of products with operands other than fp32 our own kernels alone are shown.
    """
    found: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for row in record["candidates"]:
        types = " · ".join({"f": "fp32", "h": "fp16", "b": "bf16"}[t] for t in row["types"])
        for arm, share in row["bias"].items():
            kernel = next((word for word in arm.split() if word.startswith("hopper_")), "")
            if row["types"] != "ff" and not kernel:
                continue  # others have them in the record
            name = (f"`{kernel}`" if kernel else arm) + f", {types}" * (row["types"] != "ff")
            found.setdefault(name, {}).setdefault(row["data"], []).append((share, row["size"][3]))
    kinds = list(dict.fromkeys(row["data"] for row in record["candidates"]))
    lines = ["| | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for name, own in found.items():
        worst = [max(own[kind], key=lambda one: abs(one[0])) if kind in own else None for kind in kinds]
        lines.append(f"| {name} | " + " | ".join(f"{one[0]:+.1e} ({one[1]})" if one else "–" for one in worst) + " |")
    depths = sorted({row["size"][3] for row in record["candidates"]})
    return [*lines, "", f"The largest over K = {', '.join(map(str, depths))}; in brackets the K that has it.  "]


def _sustained(first: str, second: str, title: str, record: Mapping[str, Any]) -> list[str]:
    """A row a problem: both speeds in TFLOP/s, their ratio, both errors, and energy; of bursts, where it is not read, clocks."""
    measurements: list[Measurement] = record["measurements"]
    burst = any(m.mode == "burst" for m in measurements)
    last = "MHz" if burst else "nJ an operation"
    lines = [
        f"| M×N×K | {first} | {title} | times as fast | Frobenius error, {first} | {title} | {last}, {first} | {title} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in dict.fromkeys(map(size_of, measurements)):
        both = {m.competitor["name"]: m for m in measurements if size_of(m) == size}
        pair = [both.get(first), both.get(second)]
        speeds = [gflops_text(m.gflops / 1e3) if m else "–" for m in pair]
        ours, theirs = pair
        times = f"{ours.gflops / theirs.gflops:.2f}" if ours and theirs else "–"
        errors = [f"{m.verdict['frobenius']:.1e}" if m else "–" for m in pair]
        energy = [f"{1e9 * m.energy / m.flops:.3g}" if m and m.energy and m.flops else "–" for m in pair]
        clocks = [f"{m.clock:.0f}" if m and m.clock else "–" for m in pair]
        lines.append(f"| {size} | " + " | ".join([*speeds, times, *errors, *(clocks if burst else energy)]) + " |")
    return [*lines, "", "TFLOP/s.  "]


def _slices(record: Mapping[str, Any]) -> list[str]:
    """A row a shape: what is chosen, measured and as it was reckoned before, one slice, the fastest, cuBLAS; errors where known."""
    lines = [
        "| M×N×K | tile, slices | µs | reckoned | in one slice | fastest | cuBLAS fp32 | times as fast "
        "| Frobenius error | one slice | cuBLAS fp32 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    deep = {tuple(d["shape"]): d for d in record["deep"]}
    for row in record["shapes"]:
        ways = row["ways"]
        own, best = next(w for w in ways if w["chosen"]), min(ways, key=lambda w: w["seconds"])
        one = next(w for w in ways if w["slices"] == 1)
        known = deep.get(tuple(row["shape"]), {"frobenius": row["frobenius"]})
        errors = [f"{known[k]:.1e}" if known.get(k) else "–" for k in ("frobenius", "one_slice", "cublas")]
        fastest = f"{1e6 * best['seconds']:.0f}" + (f", {best['slices']} slices" if best is not own else "")
        cells = (
            "×".join(map(str, row["shape"])), f"{own['tile'].split()[0].replace('x', '×')}, {own['slices']}",
            f"{1e6 * own['seconds']:.0f}", f"{1e6 * own['reckoned']:.0f}", f"{1e6 * one['seconds']:.0f}", fastest,
            f"{1e6 * row['cublas']:.0f}", f"{row['cublas'] / own['seconds']:.2f}", *errors,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", "Whole calls in turns with cuBLAS, no load; reckoned: by the constants of that commit.  "]


TABLES = {"fp32x": block}
