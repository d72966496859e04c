"""Time groups of products of unequal shapes: one launch, a launch each, and a loop over PyTorch's own.

    python benchmarks/grouped.py results/nvidia-h200/grouped.json

Each arm is held against float64 first. Then arms take turns, as calls one after the other and as CUDA graphs, which leave out what
the host does. The table has microseconds of a group, medians; each group has a second line for ``precision="fp32"``.

It keeps a loop of its own, for a group of unequal products is no problem that ``compare`` can place.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import toprung
from candidates import captured
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

CALLS, ROUNDS, LIMIT = 5, 9, 5e-6
"""Calls of a sample; samples of each arm; the largest error of all, in norms."""

Shape = tuple[int, int, int]


def groups() -> dict[str, list[Shape]]:
    """Return M, N and K of the products of each group."""
    rng = random.Random(7)
    return {
        "64 experts, M 16…512": [(rng.randint(16, 512), 2048, 1024) for _ in range(64)],
        "64 experts, M 16…512, back": [(rng.randint(16, 512), 1024, 2048) for _ in range(64)],
        "8 experts, M 64…4096": [(rng.randint(64, 4096), 2048, 1024) for _ in range(8)],
        "200 blocks of 128³": [(128, 128, 128)] * 200,
        "96 heads, length 64…1024": [(n, n, 64) for n in (rng.randint(16, 256) * 4 for _ in range(96))],
        "300 small": [(rng.randint(17, 96), rng.randint(17, 96), rng.randint(64, 256)) for _ in range(300)],
    }


def seconds(run: Callable[[], Any]) -> float:
    """Return the seconds from the first call to the end of the last one's work: what a caller waits, host and device."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS


def measured(shapes: list[Shape]) -> dict[str, Any]:
    """Return errors and samples of every arm; an arm that is wrong has no samples."""
    generator = torch.Generator("cuda").manual_seed(len(shapes))
    a, b = ([torch.rand(*size, device="cuda", generator=generator) - 0.5 for size in sizes] for sizes in (
        [(m, k) for m, _, k in shapes], [(k, n) for _, n, k in shapes]))  # fmt: skip
    out = [torch.empty(m, n, device="cuda") for m, n, _ in shapes]
    exact = [x.double() @ y.double() for x, y in zip(a, b, strict=True)]

    def each(precision: str = "auto") -> None:
        for x, y, z in zip(a, b, out, strict=True):
            toprung.matmul(x, y, z, precision=precision)

    def theirs() -> None:
        for x, y, z in zip(a, b, out, strict=True):
            torch.mm(x, y, out=z)

    arms: dict[str, Callable[[], Any]] = {
        "group": lambda: toprung.matmul_grouped(a, b, out), "each": each, "torch": theirs,
        "group, fp32": lambda: toprung.matmul_grouped(a, b, out, precision="fp32"), "each, fp32": lambda: each("fp32"),
    }  # fmt: skip
    row: dict[str, Any] = {"shapes": shapes, "error": {}, "wrong": [], "seconds": {}, "launches": {}, "kernels": {}}
    timed: dict[str, Callable[[], Any]] = {}
    for name, run in arms.items():
        for x in out:
            x.fill_(math.nan)
        run()
        error = max(float((x.double() - y).norm() / y.norm()) for x, y in zip(out, exact, strict=True))
        row["error"][name] = error
        if name.startswith("group"):
            left = toprung.last_receipt()
            assert left is not None
            row["launches"][name], row["kernels"][name] = left.launches, list(left.kernels)
        if not error < LIMIT:
            row["wrong"].append(name)
            continue
        timed[name] = lambda run=run: [run() for _ in range(CALLS)]  # type: ignore[misc]
        graph = captured(run, CALLS)
        for x in out:
            x.fill_(math.nan)
        graph.replay()
        if not max(float((x.double() - y).norm() / y.norm()) for x, y in zip(out, exact, strict=True)) < LIMIT:
            row["wrong"].append(f"{name}, graph")
            continue
        timed[f"{name}, graph"] = graph.replay
    samples: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, run in timed.items():
            samples[name].append(seconds(run))
    row["seconds"] = samples
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    session = session_at(Home("cuda", 0))
    rows = []
    for name, shapes in groups().items():
        rows.append({"group": name, **measured(shapes)})
        for arm, kernels in rows[-1]["kernels"].items():
            print(f"{name}, {arm}: {rows[-1]['launches'][arm]} launches of {kernels}", flush=True)
    what = f"python benchmarks/grouped.py results/{session.device.slug}/{options.out.name}"
    results.write(options.out, results.record(what, environment(session), [], grouped=rows))
    names = ("group", "each", "torch")
    print(f"{'µs of a group':28}" + "".join(f"{name:>10}{'graph':>8}" for name in names) + "  error, torch's")
    wrong = False
    for row in rows:
        found = {name: 1e6 * statistics.median(samples) for name, samples in row["seconds"].items()}
        for title, suffix in ((row["group"], ""), ("    fp32", ", fp32")):
            arms = [name if name == "torch" else name + suffix for name in names]
            cells = "".join(f"{found.get(arm, math.nan):10.1f}{found.get(f'{arm}, graph', math.nan):8.1f}" for arm in arms)
            errors = f"{row['error'][arms[0]]:.1e} {row['error']['torch']:.1e}"
            print(f"{title:28}{cells}  {errors}" + " WRONG" * bool(row["wrong"]))
        wrong |= bool(row["wrong"])
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
