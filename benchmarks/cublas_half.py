"""Hold cuBLAS on two halves of one type against float64, and time it beside fp32x in flight and PyTorch's own product.

    python benchmarks/cublas_half.py results/nvidia-h200/cublas-half.json

Errors come first, as multiples of 2⁻²⁴·Σ|a||b| on random signs and on positive numbers: what exceeds fp32's limit is marked WRONG.
Then the arms of each shape take turns, each a CUDA graph of several calls. From operations and seconds of the largest shapes follow
RATE and START of ``toprung.kernels.cublas_half``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import inflight
from inflight import graph_of, seconds_of, started
from mixed import desc_of
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.kernels.base import NoConfig
from toprung.kernels.cublas_half.family import FAMILY
from toprung.kernels.hopper_inflight.cost import configs, seconds
from toprung.kernels.hopper_inflight.family import FAMILY as IN_FLIGHT
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.oracle.precision import precision

SHAPES = (
    (256, 256, 256), (1024, 1024, 1024), (4096, 256, 7168), (16, 4096, 4096), (4096, 4096, 1024), (1024, 1024, 16384),
    (4096, 4096, 4096), (8192, 8192, 8192),
)  # fmt: skip
"""M, N and K, weights as N×K: small, square, a router, a decoding step, shallow, deep."""

PAIRS = {"bb": torch.bfloat16, "hh": torch.float16}
SIGNED = 16.0
"""Grade ratio that fp32 stays below on random signs (``toprung.oracle.precision``)."""
ROUNDS = 5


def grade(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rows: int = 256) -> float:
    """Return the largest error of the first rows as a multiple of 2⁻²⁴·Σ|a||b|."""
    x, y = a[:rows].double(), b.double()
    error = (found[:rows].double() - x @ y).abs() / (2.0**-24 * (x.abs() @ y.abs()))
    return float(error.nan_to_num(math.inf).max())


def measured(session: Any, shape: tuple[int, int, int], pair: str) -> dict[str, Any]:
    """Return grades of both distributions, and seconds of the arms in turns."""
    m, n, k = shape
    rng, kind = torch.Generator("cuda").manual_seed(m + n + k), PAIRS[pair]
    desc, out = desc_of(pair, m, n, k), torch.empty((m, n), device="cuda")
    block = min(configs(desc, session.device.compute_units), key=lambda c: seconds(desc, c, session.device.compute_units))
    theirs, ours = started(session, FAMILY, desc, NoConfig()), started(session, IN_FLIGHT, desc, block)
    row: dict[str, Any] = {"size": list(shape), "types": pair, "block": str(block), "grades": {}, "wrong": [], "seconds": {}}
    for name in ("positive", "random signs"):
        made = [torch.rand(x, generator=rng, device="cuda") - 0.5 * (name != "positive") for x in ((m, k), (n, k))]
        a, b = (x.to(kind) for x in made)
        arms: dict[str, Callable[[], None]] = {
            "cublas_half": lambda a=a, b=b: theirs(a, b, out),  # type: ignore[misc]
            "in flight": lambda a=a, b=b: ours(a, b, out),  # type: ignore[misc]
            "torch": lambda a=a, b=b: torch.mm(a, b.mT, out_dtype=torch.float32, out=out),  # type: ignore[misc]
        }
        limit = precision("fp32x").limit(k, SIGNED if name != "positive" else None)
        for arm, run in arms.items():
            out.fill_(math.nan)
            run()
            row["grades"][f"{arm}, {name}"] = found = grade(out, a, b.mT)
            if not found <= limit:
                row["wrong"].append(f"{arm}, {name}: {found:.3g} of {limit:.3g}")
    graphs = {arm: graph_of(run) for arm, run in arms.items()}
    samples: dict[str, list[float]] = {arm: [] for arm in graphs}
    for _ in range(ROUNDS):
        for arm, graph in graphs.items():
            samples[arm].append(seconds_of(graph))
    row["seconds"] = samples
    return row


def line(row: dict[str, Any]) -> str:
    """Return a shape's medians in µs, and the grades of cuBLAS and in flight."""
    times = [1e6 * statistics.median(row["seconds"][arm]) for arm in ("cublas_half", "in flight", "torch")]
    grades = [row["grades"][f"{arm}, {d}"] for d in ("random signs", "positive") for arm in ("cublas_half", "in flight")]
    cells = " ".join(f"{t:9.1f}" for t in times) + " | " + " ".join(f"{g:8.3g}" for g in grades)
    return f"{'×'.join(map(str, row['size'])):16} {row['types']} {cells} {'; '.join(f'WRONG {w}' for w in row['wrong'])}"


def fitted(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return RATE and START by least squares of seconds on operations, weighed by relative error, of shapes of 20 µs or more."""
    points = [(2.0 * math.prod(r["size"]), statistics.median(r["seconds"]["cublas_half"])) for r in rows]
    large = np.array([p for p in points if p[1] > 2e-5])
    a = np.stack([large[:, 0], np.ones(len(large))], 1) / large[:, 1:]
    each, start = np.linalg.lstsq(a, np.ones(len(large)), rcond=None)[0]
    return 1 / float(each), float(start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=50.0, help="seconds after which no further shape is begun")
    options = parser.parse_args()
    inflight.CALLS, start, rows = 6, time.perf_counter(), []
    session = session_at(Home("cuda", 0))
    for shape in SHAPES:
        for pair in PAIRS:
            if time.perf_counter() - start < options.limit:
                rows.append(measured(session, shape, pair))
    what = f"python benchmarks/cublas_half.py results/{session.device.slug}/{options.out.name}"
    results.write(options.out, results.record(what, environment(session), [], cublas_half=rows))
    print(f"{len(rows)} of {len(SHAPES) * len(PAIRS)} rows; µs of cublas_half, in flight, torch.mm")
    print("| grades of cublas_half and in flight on random signs, and on positive numbers")
    print("\n".join(map(line, rows)))
    print("RATE = {:.3g}, START = {:.2g}".format(*fitted(rows)))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
