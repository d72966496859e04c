"""Time fp32x with rings of 4, 6 and 8 stages: a record.

    python benchmarks/stages.py results/nvidia-h200/stages.json [--shapes 8192x8192x8192,512x512x32768]

The product's tile and slices of K are those that the cost model takes. Each arm is held against float64 first, on some rows; then
arms take turns as CUDA graphs. The table has µs of a product, medians.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from odd_shapes import BURST, LIMIT, ROUNDS, Shape, captured, desc_of, own_run, parsed, seconds
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.backends.base import Session
from toprung.dispatch.selection import Candidate
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.cost import select_config
from toprung.kernels.registry import family
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SHAPES = (
    "1024x1024x1024,1360x1360x1360,2048x2048x2048,4096x4096x4096,8192x8192x8192,16384x16384x16384,4096x4096x512,8192x8192x64,"
    "512x512x32768,256x256x131072,2848x496x5837,960x2520x4608,1344x1880x6656,4096x64x8192"
)
STAGES = 4, 6, 8
ROWS = 64
"""Rows of a result that are held against float64."""


def measured(session: Session, shape: Shape) -> dict[str, Any]:
    """Return the configuration, and errors and samples of each number of stages that fits."""
    _, m, n, k, *_ = shape
    desc, family_ = desc_of(shape), family("hopper_fp32x")
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    a, b = (torch.rand(*size, device="cuda", generator=generator) - 0.5 for size in ((m, k), (k, n)))
    c = torch.empty(m, n, device="cuda")
    exact = a[:ROWS].double() @ b.double()
    chosen = select_config(desc, session.device.compute_units)
    row: dict[str, Any] = {"shape": shape, "config": str(chosen), "error": {}, "seconds": {}}
    graphs, kept, calls, side = {}, [], {}, torch.cuda.Stream()
    for stages in STAGES:
        variant = replace(chosen.variant, STAGES=stages)
        if variant.refused():
            continue
        run = own_run(session, desc, Candidate(family_, Fp32xConfig(variant, chosen.slices)), (a, b, c))
        c.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        row["error"][stages] = error = float((c[:ROWS].double() - exact).norm() / exact.norm())
        if not error < LIMIT:
            continue
        seconds(run)
        calls[stages] = max(1, min(200, round(BURST / seconds(run))))
        graphs[stages] = captured(run, calls[stages], side)
        kept.append(run)
    samples: dict[int, list[float]] = {stages: [] for stages in graphs}
    for _ in range(ROUNDS):
        for stages, graph in graphs.items():
            samples[stages].append(seconds(graph.replay) / calls[stages])
    row["seconds"] = samples
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", default=SHAPES)
    options = parser.parse_args()
    session, rows = session_at(Home("cuda", 0)), []
    for shape in parsed(options.shapes):
        rows.append(measured(session, shape))
        what = f"python benchmarks/stages.py results/{session.device.slug}/{options.out.name}"
        results.write(options.out, results.record(what, environment(session), [], stages=rows))
    for row in rows:
        found = {stages: f"{1e6 * statistics.median(samples):10.1f}" for stages, samples in row["seconds"].items()}
        wrong = "" if len(found) == len(row["error"]) else "  WRONG"
        print(f"{'x'.join(map(str, row['shape'][1:4])):20} {row['config']:40}", *(f"{s}:{t}" for s, t in found.items()), wrong)
    return int(any(len(row["seconds"]) < len(row["error"]) for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
