"""Products of NumPy arrays by toprung's own kernels on a CPU, beside NumPy's BLAS, in one run.

    python benchmarks/host_arrays.py results/amd-epyc/host-arrays.json [--device opencl:0]

Both write into an array that is there; results are compared with float64 before anything is timed. They take turns, a burst of
calls each, in an order drawn anew each time. A pause and an untimed call come before a burst: NumPy's BLAS and OpenCL have a thread
for each core, and those of NumPy's wait busily for a while for the next product.

It keeps a loop of its own, for competitors must take turns in a drawn order with pauses between.
"""

import argparse
import os
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import toprung
from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.stats import paired_ratio

BURSTS, CALLS = 7, 5

PAUSE = 0.1
"""Seconds after which threads that wait busily have gone to sleep."""

SHAPES = [
    (4096, 16, 4096, "NN"), (16, 4096, 4096, "NN"), (4096, 16, 4096, "NT"), (16, 4096, 4096, "NT"), (16, 4000, 4001, "NN"),
    (8, 4096, 4096, "NN"), (4096, 4, 4096, "NN"), (4, 4096, 4096, "NN"), (3, 100, 100_000, "NN"), (100_000, 3, 100, "NN"),
    (1, 4096, 4096, "NN"), (4096, 1, 4096, "NN"), (1, 65536, 64, "NN"), (4096, 16, 64, "NN"), (65536, 16, 16, "NN"),
    (16, 16, 65536, "NN"), (33, 1000, 1000, "NN"), (64, 64, 4096, "NN"), (512, 512, 512, "NN"), (1024, 1024, 1024, "NN"),
]  # fmt: skip
"""M, N, K and layout: a short side in every place, vectors, and five that are neither."""


def bound(a, b):
    """Return the most that an element may be away from float64's, whatever the order of its sum."""
    u, k = 2.0**-24, a.shape[1] + 4
    return k * u / (1 - k * u) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))


def measured(m, n, k, trans, device, draw):
    """Return seconds of both, in turns, and the kernel that ran; raise if a result is wrong."""
    rng = np.random.default_rng(m * 31 + n * 17 + k)
    a = rng.uniform(-1, 1, (m, k)).astype(np.float32)
    b = rng.uniform(-1, 1, (n, k)).astype(np.float32).T if trans == "NT" else rng.uniform(-1, 1, (k, n)).astype(np.float32)
    c = np.empty((m, n), np.float32)
    ways = {"toprung": lambda: toprung.matmul(a, b, c, own=True, device=device), "numpy": lambda: np.matmul(a, b, out=c)}
    exact, most = a.astype(np.float64) @ b.astype(np.float64), bound(a, b)
    for name, call in ways.items():
        c[:] = np.nan
        call()
        if not (np.abs(c - exact) <= most).all():
            raise SystemExit(f"{name} is wrong on {m}×{n}×{k} {trans}")
        if name == "toprung":
            kernel = toprung.last_receipt().kernels[0]
    seconds = {name: [] for name in ways}
    for _ in range(BURSTS):
        for name, call in draw.sample(list(ways.items()), len(ways)):
            time.sleep(PAUSE)
            call()
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - start)
    return seconds, kernel


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--device", default="pocl")
    chosen = arguments.parse_args()
    os.environ["TOPRUNG_STORE"] = "off"  # what is selected for everybody
    device = backends.find(chosen.device)
    draw, rows = random.Random(0), []
    for m, n, k, trans in SHAPES:
        seconds, kernel = measured(m, n, k, trans, device.id, draw)
        ratio = paired_ratio(seconds["toprung"], seconds["numpy"])
        rows.append({"M": m, "N": n, "K": k, "trans": trans, "kernel": kernel, "seconds": seconds})
        ours, numpy = (1e3 * statistics.median(seconds[name]) for name in ("toprung", "numpy"))
        print(f"{m:6d} × {n:5d} × {k:6d} {trans}  {ours:8.3f} ms  NumPy {numpy:8.3f}  {ratio.value:6.2f}  {kernel}")
    what = f"python benchmarks/host_arrays.py results/{device.slug}/{chosen.out.name}"
    with backends.opened(device) as session:
        results.write(chosen.out, results.record(what, environment(session), [], host_arrays=rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
