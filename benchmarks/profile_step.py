"""Profile a training step of a GPT-2-like model with PyTorch's profiler, without toprung and with it, and draw both.

    python benchmarks/profile_step.py results/nvidia-h200/torch-profile.json --picture docs/torch_profile.svg
    python benchmarks/profile_step.py OUT.json --picture OUT.svg --small --device cpu
    python benchmarks/profile_step.py results/nvidia-h200/torch-profile.json --picture docs/torch_profile.svg --redraw

A step is forward, loss and backward, eager. Its gradients are held against float64's first. The picture has what runs on the
device over time, a line for each arm, on one scale; the record has the kernels that take longest. ``--redraw`` measures nothing.
"""

import argparse
import sys
from pathlib import Path

import torch

import toprung.torch
from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.torch.timing import profiled
from torch_models import READY, WARM, WRONG, Eager, arm, errors
from torch_programs import made

ARMS = {"fp32": "PyTorch", "toprung": "with toprung"}
KINDS = {"theirs": "#1f77b4", "ours": "#2ca02c", "rest": "#bbbbbb"}
"""Colours of PyTorch's products, of toprung's, and of everything else."""

PRODUCTS = ("gemm", "gemv", "splitkreduce", "cutlass", "nvjet", "aten::mm", "aten::addmm", "aten::bmm")
"""Parts of the names of PyTorch's products, in lower case: kernels of its libraries, and operators on a CPU."""

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    if options.redraw:
        options.picture.write_text(picture(results.read(options.out)["torch_profile"]["arms"]), encoding="utf-8")
        return 0

    place = torch.device(options.device)
    training = made("gpt", place, options.small)
    step, exact, arms = Eager(training), training.exact(), {}
    for name in ARMS:
        with arm(name, place, options.small):
            for _ in range(WARM):
                step()
                toprung.torch.wait(READY)
            error = errors(step, exact)["gradient"]
            if not error < WRONG[name]:
                print(f"{name}: gradients are wrong by {error:.1e}")
                return 1
            profiled(step, place.type)  # the profiler's own first time
            rows = profiled(step, place.type)
        kernels, rest = summed(rows)
        arms[name] = {"error": error, "kernels": kernels, "rest": rest, "spans": spans(rows)}

    sort = "gpu" if place.type == "cuda" else "cpu"
    device = next(d for d in backends.devices() if d.kind == sort and (sort == "cpu" or d.backend == "cuda"))
    what = f"python benchmarks/profile_step.py results/{device.slug}/{options.out.name} --picture docs/{options.picture.name}"
    found = {"title": training.title, "arms": arms}
    results.write(options.out, results.record(what, environment(backends.session_for(device)), [], torch_profile=found))
    options.picture.write_text(picture(arms), encoding="utf-8")
    for name, one in arms.items():
        print(f"{ARMS[name]}: {1e-3 * one['spans'][-1][2]:.1f} ms on the device, gradients off by {one['error']:.1e}")
        for kernel in [*one["kernels"][:6], {"name": "everything else", **one["rest"]}]:
            print(f"  {1e6 * kernel['seconds']:10.1f} µs {kernel['count']:5} × {kernel['name'][:90]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
