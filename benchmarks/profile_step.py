"""Profile steps of programs with PyTorch's profiler, with toprung and without: device time by kernel.

    python benchmarks/profile_step.py results/nvidia-h200/torch-profile.json --picture docs/torch_profile.svg
    python benchmarks/profile_step.py OUT.json --picture OUT.svg --small --device cpu
    python benchmarks/profile_step.py results/nvidia-h200/torch-profile.json --picture docs/torch_profile.svg --redraw
    python benchmarks/profile_step.py results/nvidia-h200/torch-shares.json --programs gpt2,bert,llama

A step is forward, loss and backward, eager. Its gradients are held against float64's first. The picture shows the kernels on the
device over time in a step of a GPT-2-like model, a line for each arm, on one scale; the record has the kernels that take longest.
``--redraw`` measures nothing. With ``--programs``, names of ``torch_programs.py``, the record has for each program the device's
time by operator and shape, with PyTorch in TF32 as a third arm: it shows the time that faster products leave.
"""

import argparse
import bisect
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.torch.timing import profiled
from torch_models import WRONG, Eager, arm, errors, listed, ready
from torch_programs import PROGRAMS, made

ARMS = {"fp32": "PyTorch", "toprung": "with toprung"}
KINDS = {"theirs": "#1f77b4", "ours": "#2ca02c", "rest": "#bbbbbb"}
"""Colours of PyTorch's products, of toprung's, and of everything else."""

PRODUCTS = ("gemm", "gemv", "splitkreduce", "cutlass", "nvjet", "aten::mm", "aten::addmm", "aten::bmm")
"""Parts of the names of PyTorch's products, in lower case: kernels of its libraries, and operators on a CPU."""

OPERATORS = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation")
"""Operators of aten that count as products, with kernels that prepare operands or add slices."""

TOP = 12
"""Kernels that the record names; what the others take comes together."""


def kind(name):
    """Return the key of ``KINDS`` of a kernel."""
    low = name.lower()
    return "ours" if "toprung" in low else "theirs" if any(part in low for part in PRODUCTS) else "rest"


def summed(rows):
    """Return the kernels that take longest together, with counts, and what the others take."""
    by_name = {}
    for name, _, length in rows:
        count, seconds = by_name.get(name, (0, 0.0))
        by_name[name] = count + 1, seconds + 1e-6 * length
    order = sorted(by_name.items(), key=lambda one: -one[1][1])
    kernels = [{"name": name, "kind": kind(name), "count": count, "seconds": seconds} for name, (count, seconds) in order[:TOP]]
    rest = [one for _, one in order[TOP:]]
    return kernels, {"count": sum(count for count, _ in rest), "seconds": sum(seconds for _, seconds in rest)}


def spans(rows):
    """Return kind, start and end in microseconds of what runs; neighbours of a kind are one."""
    found = []
    for name, start, length in rows:
        if found and found[-1][0] == kind(name) and start - found[-1][2] < 5:
            found[-1][2] = round(start + length, 1)
        else:
            found.append([kind(name), round(start, 1), round(start + length, 1)])
    return found


def picture(arms):
    """Return an SVG: a line of time for each arm, coloured by what runs."""
    width, height, left = 760, 46, 110
    whole = max(one["spans"][-1][2] for one in arms.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 30} {60 + len(arms) * (height + 26)}" '
        'font-family="sans-serif" font-size="12" role="img" aria-label="Kernels of a step, without toprung and with it">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    words = {"theirs": "matrix products, PyTorch's kernels", "ours": "matrix products, toprung's", "rest": "everything else"}
    for i, (name, colour) in enumerate(KINDS.items()):
        lines.append(f'<rect x="{left + 240 * i}" y="10" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{left + 240 * i + 18}" y="20">{words[name]}</text>')
    for i, (name, one) in enumerate(arms.items()):
        y = 40 + i * (height + 26)
        lines.append(f'<text x="{left - 8}" y="{y + height / 2 + 4}" text-anchor="end">{ARMS[name]}</text>')
        lines += [
            f'<rect x="{left + width * start / whole:.2f}" y="{y}" width="{max(0.1, width * (end - start) / whole):.2f}" '
            f'height="{height}" fill="{KINDS[what]}"/>'
            for what, start, end in one["spans"]
        ]  # fmt: skip
        end = one["spans"][-1][2]
        at = left + width * end / whole
        lines.append(f'<text x="{at:.1f}" y="{y + height + 15}" text-anchor="end">{1e-3 * end:.1f} ms</text>')
    return "\n".join([*lines, "</svg>", ""])


def by_operator(step, kind):
    """Return device seconds, calls and kernels of a step by operator and shapes; on a CPU only products.

    A kernel that is launched ahead, and waits on the device for the one before, counts from the end of that one.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as found:
        step().item()
    with tempfile.TemporaryDirectory() as folder:  # events() takes minutes on a large step to compute what the trace has
        found.export_chrome_trace(f"{folder}/trace.json")
        trace = json.loads(Path(folder, "trace.json").read_text("utf-8"))["traceEvents"]
    events = [one for one in trace if one.get("ph") == "X"]
    hosts = {one["args"]["External id"]: one for one in events if one["cat"] == "cpu_op" and "External id" in one["args"]}
    products = {}
    for one in sorted(hosts.values(), key=lambda one: one["ts"]):
        if one["name"].removeprefix("aten::") in OPERATORS:
            products.setdefault(one["tid"], []).append(one)
    launches = {one["args"].get("correlation"): one for one in events if one["cat"] in ("cuda_runtime", "cuda_driver")}
    work = [one for one in events if one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    rows, end = {}, 0.0
    for one in sorted(work if kind == "cuda" else itertools.chain(*products.values()), key=lambda one: one["ts"]):
        args, until = one["args"], one["ts"] + one["dur"]
        at = hosts.get(args.get("External id")) or launches.get(args.get("correlation"), one)
        took, end = max(until - max(one["ts"], end), 0.0), max(end, until)
        there = products.get(at["tid"], [])
        before = bisect.bisect_right(there, at["ts"], key=lambda one: one["ts"])
        if before and at["ts"] <= there[before - 1]["ts"] + there[before - 1]["dur"]:
            at = there[before - 1]
        shapes = "; ".join("×".join(map(str, shape)) for shape in at["args"].get("Input Dims", ()) if shape)
        row = rows.setdefault((at["name"], shapes), {"seconds": 0.0, "calls": set(), "kernels": {}})
        row["calls"].add(at["ts"])
        row["seconds"] += 1e-6 * took
        row["kernels"][one["name"]] = row["kernels"].get(one["name"], 0.0) + 1e-6 * took
    return [
        {"op": op, "shapes": shapes, **row, "calls": len(row["calls"])}
        for (op, shapes), row in sorted(rows.items(), key=lambda one: -one[1]["seconds"])
    ]


def shares(name, place, small):
    """Return device seconds per step by arm: total, products, those left to PyTorch, and by operator."""
    training = made(name, place, small)
    step, exact, arms = Eager(training), training.exact(), {}
    for one in ("fp32", "tf32", "toprung"):
        with arm(one, place, small):
            ready(step)
            error = errors(step, exact)["gradient"]
            if not error < WRONG[one]:
                raise RuntimeError(f"{name}, {one}: gradients are wrong by {error:.1e}")
            rows = by_operator(step, place.type)
        product = [row for row in rows if row["op"].removeprefix("aten::") in OPERATORS]
        left = [row for row in product if not any("toprung" in k.lower() for k in row["kernels"])]
        whole, products, theirs = (sum(row["seconds"] for row in found) for found in (rows, product, left))
        arms[one] = {"error": error, "seconds": whole, "products": products, "left": theirs, "operators": rows}
    return {"model": name, "title": training.title, "arms": arms}


def shares_table(found):
    """Return lines for programs, their geometric means, and the products that lose most to TF32's.

    Speed-ups are of toprung's products, TF32's, products that take 1.5 times as long (three in fp16), and none at all.
    """
    heads = ("fp32", "tf32", "toprung", "products", "(tf32)", "left", "others", "(tf32)")
    lines = [f"{'device ms':10}{''.join(f' {head:>8}' for head in heads)} {'×':>6} {'tf32 ×':>6} {'1.5 ×':>6} {'free ×':>6}"]
    gains, lost = [], []
    for one in found:
        fp32, tf32, ours = (one["arms"][name] for name in ("fp32", "tf32", "toprung"))
        others = ours["seconds"] - ours["products"]
        costs = ours["products"], *(times * tf32["products"] for times in (1, 1.5, 0))
        gains.append([fp32["seconds"] / max(others + cost, 1e-9) for cost in costs])
        ms = (fp32["seconds"], tf32["seconds"], ours["seconds"], ours["products"], tf32["products"], ours["left"], others)
        ms += (tf32["seconds"] - tf32["products"],)
        lines.append(f"{one['model']:10}{''.join(f' {1e3 * x:8.2f}' for x in ms)}{''.join(f' {x:6.2f}' for x in gains[-1])}")
        beside = {(row["op"], row["shapes"]): row["seconds"] for row in tf32["operators"]}
        plain = {(row["op"], row["shapes"]): row["seconds"] for row in fp32["operators"]}
        for row in ours["operators"]:
            key = row["op"], row["shapes"]
            if row["op"].removeprefix("aten::") in OPERATORS and key in beside:
                lost.append((row["seconds"] / ours["seconds"], one["model"], key, row, plain.get(key, 0.0), beside[key]))
    lines.append(f"{'mean':91}{''.join(f' {statistics.geometric_mean(column):6.2f}' for column in zip(*gains, strict=True))}")
    for share, model, key, row, fp32, tf32 in sorted(lost, key=lambda one: (one[5] - one[3]["seconds"]) * one[0])[:TOP]:
        parts = ", ".join(f"{k[:40]} {1e3 * s:.2f}" for k, s in sorted(row["kernels"].items(), key=lambda p: -p[1])[:3])
        lines.append(
            f"{model} {key[0]} {key[1]}, {row['calls']} ×: {1e3 * row['seconds']:.2f} ms ({share:.0%}), "
            f"fp32 {1e3 * fp32:.2f}, tf32 {1e3 * tf32:.2f}: {parts}"
        )
    return "\n".join(lines)


def stored(out, place, words, **found):
    """Write the record of the device that was used."""
    sort = "gpu" if place.type == "cuda" else "cpu"
    device = next(d for d in backends.devices() if d.kind == sort and (sort == "cpu" or d.backend == "cuda"))
    what = f"python benchmarks/profile_step.py results/{device.slug}/{out.name} {words}"
    results.write(out, results.record(what, environment(backends.session_for(device)), [], **found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--picture", type=Path)
    wanted.add_argument("--programs", type=listed(PROGRAMS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    if options.redraw:
        options.picture.write_text(picture(results.read(options.out)["torch_profile"]["arms"]), encoding="utf-8")
        return 0

    place = torch.device(options.device)
    if options.programs:
        found = []
        for name in options.programs:
            found.append(shares(name, place, options.small))
            stored(options.out, place, f"--programs {','.join(options.programs)}", torch_shares=found)
        print(shares_table(found))
        return 0

    training = made("gpt", place, options.small)
    step, exact, arms = Eager(training), training.exact(), {}
    for name in ARMS:
        with arm(name, place, options.small):
            ready(step)
            error = errors(step, exact)["gradient"]
            if not error < WRONG[name]:
                print(f"{name}: gradients are wrong by {error:.1e}")
                return 1
            profiled(step, place.type)  # the profiler's own first time
            rows = profiled(step, place.type)
        kernels, rest = summed(rows)
        arms[name] = {"error": error, "kernels": kernels, "rest": rest, "spans": spans(rows)}

    stored(options.out, place, f"--picture docs/{options.picture.name}", torch_profile={"title": training.title, "arms": arms})
    options.picture.write_text(picture(arms), encoding="utf-8")
    for name, one in arms.items():
        print(f"{ARMS[name]}: {1e-3 * one['spans'][-1][2]:.1f} ms on the device, gradients off by {one['error']:.1e}")
        for kernel in [*one["kernels"][:6], {"name": "everything else", **one["rest"]}]:
            print(f"  {1e6 * kernel['seconds']:10.1f} µs {kernel['count']:5} × {kernel['name'][:90]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
