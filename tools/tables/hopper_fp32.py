"""Plain fp32 on Hopper beside cuBLAS: tables and a picture of the records of ``benchmarks/hopper_fp32.py`` of 32569d8."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord, UnknownName
from toprung.lab.harness.results import read
from toprung.lab.harness.stats import paired_ratio
from toprung.oracle.gemm import TRANSPOSES

VENDOR = "cublas"
HEADS = "| M×N×K | A, B | cuBLAS TFLOP/s | ours TFLOP/s | ratio (95 %) |"


def block(words: Sequence[str], root: Path) -> str:
    """A table and a record: ``sustained``, with watts, clocks and energy; ``shapes``, with the block's shape and the layout pass;
    ``tried``, a row for all that ran beside what was chosen; ``counters``, what the hardware counted of both products.

    Raises
    ------
    UnknownName
        another table
    BadRecord
        a record of another kind, one whose results were wrong, or a damaged one
    """
    makers: dict[str, Callable[[Sequence[Mapping[str, Any]]], list[str]]] = {
        "sustained": _sustained,
        "shapes": _shapes,
        "tried": _tried,
        "counters": _counters,
    }
    what, path = words[0], words[-1]
    if what not in makers:
        raise UnknownName("table of hopper_fp32", what, makers)
    record = read(root / path)
    if record.get("kind") != "hopper-fp32" or not record["right"]:
        raise BadRecord(f"{path} is no record of right results by benchmarks/hopper_fp32.py or fp32_counters.py")
    try:
        lines = makers[what](record["shapes"])
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise BadRecord(f"{path} is damaged ({type(error).__name__}: {error}): measure again") from None
    e = record["environment"]
    device, window = e["device"], record["sustained"]
    how = "Whole calls, medians of samples in turns, " + (f"each of {window} s under load" if window else "bursts without load")
    if what == "counters":
        how = "The product's launch alone, once, as Nsight Compute counts"
    return "\n".join([
        *lines,
        "",
        f"{how}. {device['short_name']}, {device['runtime']}, driver {device['driver']}, "
        f"{e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{path}`.  ",
    ])  # fmt: skip


def transposes(record: Mapping[str, Any], path: Path) -> None:
    """Draw GFLOP/s over the size of squares, a colour a layout, ours drawn through and cuBLAS dashed."""
    from toprung.report import plot

    plot.check(path)
    figure, axes = plot.matplotlib_pyplot().subplots(figsize=(8.4, 4.6), layout="constrained")
    found = {(s["problem"]["trans"], s["problem"]["M"]): _pair(s) for s in record["shapes"]}
    sizes = sorted({size for _, size in found})
    for i, trans in enumerate(TRANSPOSES):
        own = [size for size in sizes if (trans, size) in found]
        for place, (who, style) in enumerate((("cuBLAS", "--"), ("toprung", "-"))):
            ys = [1e3 * _speed(found[trans, size][place], 2.0 * size**3) for size in own]
            axes.plot(own, ys, style, color=f"C{i}", marker="o", markersize=3.5, linewidth=1.3, label=f"{who} {trans}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(n) for n in sizes], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("M = N = K")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(
        f"{record['environment']['device']['short_name']}, plain fp32 under load, medians; cut axis", loc="left", fontsize=10
    )
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plot.save(figure, path)


def _sustained(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a size and layout, sizes in order."""
    graded = _graded(shapes)
    more = " Frobenius error, cuBLAS | ours | grade, cuBLAS | ours |" if graded else ""
    lines = [
        f"{HEADS} W, cuBLAS | ours | MHz, cuBLAS | ours | pJ/flop, cuBLAS | ours |{more}",
        "|---|---|" + "---:|" * (13 if graded else 9),
    ]
    for shape in sorted(shapes, key=lambda s: (s["flops"], TRANSPOSES.index(s["problem"]["trans"]))):
        both = _pair(shape)
        cells = [f"{_median(s['joules'] / s['seconds'] for s in row['samples']):.0f}" for row in both]
        cells += [f"{_median(s['mhz'] for s in row['samples']):.0f}" for row in both]
        cells += [f"{1e12 * _median(s['joules'] for s in row['samples']) / shape['flops']:.1f}" for row in both]
        if graded:
            cells += [*(f"{row['frobenius']:.2e}" for row in both), *(f"{row['grade']:.2f}" for row in both)]
        lines.append("| " + " | ".join([*_beside(shape, both), *cells]) + " |")
    return lines


def _shapes(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a shape, as they were asked for."""
    lines = [
        f"{HEADS} block, stages, wait, raster | layout pass, % of a call | reckoned, % |",
        "|---|---|---:|---:|---:|---|---:|---:|",
    ]
    for shape in shapes:
        _, ours = both = _pair(shape)
        seconds = _median(s["seconds"] for s in ours["samples"])
        laid = f"{100 * ours['alone']['lay'] / seconds:.1f}" if "lay" in ours["alone"] else "–"
        cells = [f"`{ours['name']}`", laid, f"{100 * ours['reckoned'] / seconds:.0f}"]
        lines.append("| " + " | ".join([*_beside(shape, both), *cells]) + " |")
    return lines


def _graded(shapes: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if errors are stored beside times: not in the first records."""
    return all("frobenius" in row for shape in shapes for row in shape["rows"])


def _tried(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each variant of each shape, as they ran."""
    graded = _graded(shapes)
    lines = [
        "| M×N×K | A, B | variant | whole call, µs | × cuBLAS (95 %) | product alone, µs |" + " Frobenius error |" * graded,
        "|---|---|---|" + "---:|" * (3 + graded),
    ]
    for shape in shapes:
        theirs = next(r for r in shape["rows"] if r["name"] == VENDOR)
        for row in shape["rows"]:
            whole, alone = 1e6 * _median(s["seconds"] for s in row["samples"]), row.get("alone", {}).get("product")
            ratio = "–" if row is theirs else _ratio(theirs, row)
            cells = [f"`{row['name']}`", f"{whole:.0f}", ratio, f"{1e6 * alone:.0f}" if alone else "–"]
            cells += [f"{row['frobenius']:.2e}"] if graded else []
            lines.append("| " + " | ".join([_sides(shape), shape["problem"]["trans"], *cells]) + " |")
    return lines


INSTRUCTIONS = "smsp__inst_executed.sum"
TURNS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
COUNTERS = (
    ("instructions, millions", 1e-6, INSTRUCTIONS, None),
    ("of them multiply-adds, %", 100 / 32, "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", INSTRUCTIONS),
    ("cycles in which a scheduler issues, %", 100.0, "smsp__issue_active.avg.per_cycle_active", None),
    ("turns of shared memory at loads, millions", 1e-6, TURNS, None),
    ("of them conflicts of banks, %", 100.0, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", TURNS),
    ("moved from and to memory, GB", 1e-9, "dram__bytes.sum", None),
)
"""Rows of a table of counters: what it is, a factor, a metric by ncu's name, and what it is a share of."""

STALLED = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
FIRST = 5
"""Reasons for which warps wait that are shown."""


def _counters(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A column a product and shape; what warps wait for most in the last rows."""
    columns = [(shape, name, next(r for r in shape["rows"] if r["name"] == name)) for shape in shapes for name in (VENDOR, "ffma")]
    heads = [f"{'cuBLAS' if name == VENDOR else 'ours'}, {_sides(s)} {s['problem']['trans']}" for s, name, _ in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    found = [column["counters"] for *_, column in columns]
    for what, factor, one, of in COUNTERS:
        cells = " | ".join(f"{factor * c[one] / (c[of] if of else 1):,.1f}" for c in found)
        lines.append(f"| {what} | {cells} |")
    waits = [{match[1]: value for n, value in c.items() if (match := STALLED.fullmatch(n))} for c in found]
    most = sorted(set().union(*waits), key=lambda n: -max(w.get(n, 0.0) for w in waits))[:FIRST]
    for name in most:
        cells = " | ".join(f"{w.get(name, 0.0):.2f}" for w in waits)
        lines.append(f"| warps that wait at an issue: {name.replace('_', ' ')} | {cells} |")
    return lines


def _sides(shape: Mapping[str, Any]) -> str:
    p = shape["problem"]
    sides = [p["M"], p["N"], p["K"]]
    return "×".join(map(str, sides)) if len(set(sides)) > 1 else str(p["M"])


def _ratio(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the speed over cuBLAS's, and its interval."""
    ratio = paired_ratio(*([s["seconds"] for s in row["samples"]] for row in (theirs, ours)))
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _beside(shape: Mapping[str, Any], both: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first cells of both tables: size, layout, speeds and their ratio."""
    speeds = [f"{_speed(row, shape['flops']):.1f}" for row in both]
    return [_sides(shape), shape["problem"]["trans"], *speeds, _ratio(*both)]


def _pair(shape: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """cuBLAS, and the block shape that the library chooses."""
    rows = shape["rows"]
    return next(r for r in rows if r["name"] == VENDOR), next(r for r in rows if r["chosen"])


def _median(values: Any) -> float:
    return float(statistics.median(values))


def _speed(row: Mapping[str, Any], flops: float) -> float:
    """In TFLOP/s."""
    return flops / _median(s["seconds"] for s in row["samples"]) / 1e12


TABLES = {"hopper_fp32": block}
