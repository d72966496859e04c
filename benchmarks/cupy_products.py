"""Time CuPy's matrix products with toprung enabled, beside CuPy's own.

    python benchmarks/cupy_products.py results/nvidia-h200/cupy-products.json

Each product by CuPy alone, with toprung enabled, and with toprung's kernels forced. Each is computed into memory full of NaN
and compared with float64 first. Then the arms take turns: a sample is the time between two events around calls of ``cupy.matmul``
with ``out=``, and the time of the host alone. The least square that is faster forced than by CuPy tells ``min_flops`` its default.

It keeps a loop of its own, for what is timed are CuPy's calls with their way through CuPy on the host.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

import cupy

import toprung.cupy
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

PRODUCTS = (
    *(((), n, n, n, "NN") for n in (128, 192, 256, 384, 512, 1024, 4096)), ((), 4096, 1024, 4096, "NT"),
    ((16,), 1024, 1024, 128, "NN"),
)  # fmt: skip
"""Batch, M, N, K and how both operands lie. The first five have fewer operations than are taken by default."""

ARMS: dict[str, dict[str, Any] | None] = {"cupy": None, "enabled": {}, "forced": {"own": True, "min_flops": 0}}
"""Settings of each arm; None for CuPy alone."""

ROUNDS, CALLS = 7, 20
"""Samples of each arm, and calls of a sample."""

LIMIT = 1e-5
"""Largest error against float64, in Frobenius norms, that a product of float32 may have here; TF32 has ten times as much."""


def operands(batch: tuple[int, ...], m: int, n: int, k: int, lie: str) -> tuple[Any, Any]:
    rng = cupy.random.default_rng(m + n + k)

    def drawn(rows: int, cols: int, turned: bool) -> Any:
        made = rng.random((*batch, cols, rows) if turned else (*batch, rows, cols), dtype=cupy.float32) - cupy.float32(0.5)
        return made.swapaxes(-1, -2) if turned else made

    return drawn(m, k, lie[0] == "T"), drawn(k, n, lie[1] == "T")


def block(settings: dict[str, Any] | None) -> contextlib.AbstractContextManager[Any]:
    return toprung.cupy.exclude() if settings is None else toprung.cupy.use(**settings)


def sample(a: Any, b: Any, out: Any) -> tuple[float, float]:
    """Return seconds a call on the device, and seconds a call until the host may go on."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    cupy.cuda.get_current_stream().synchronize()
    start.record()
    begun = time.perf_counter()
    for _ in range(CALLS):
        cupy.matmul(a, b, out=out)
    host = time.perf_counter() - begun
    end.record()
    end.synchronize()
    return 1e-3 * cupy.cuda.get_elapsed_time(start, end) / CALLS, host / CALLS


def product(batch: tuple[int, ...], m: int, n: int, k: int, lie: str) -> dict[str, Any]:
    """Return what the arms take for a product, and their errors."""
    a, b = operands(batch, m, n, k, lie)
    oracle = a.astype("f8") @ b.astype("f8")
    out = cupy.empty((*batch, m, n), "f")
    row: dict[str, Any] = {"batch": batch, "M": m, "N": n, "K": k, "layout": lie, "error": {}, "kernel": {}, "why": {}}
    for name, settings in ARMS.items():
        toprung.cupy.products.forget()
        for _ in range(2):  # decided, then remembered
            with block(settings):
                out.fill(cupy.nan)
                assert cupy.matmul(a, b, out=out) is out
            error = float(cupy.linalg.norm((out - oracle).ravel()) / cupy.linalg.norm(oracle.ravel()))
            if not error < LIMIT:
                raise SystemExit(f"{batch} {m}×{n}×{k} {lie}, {name}: wrong by {error}")
        found = toprung.cupy.report()
        row["error"][name] = error
        row["kernel"][name] = next((r.kernel for r in found.rows), "")
        row["why"][name] = next((r.why for r in found.rows), "small" if found.small else "")
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ARMS}
    for _ in range(ROUNDS):
        for name, settings in ARMS.items():
            with block(settings):
                cupy.matmul(a, b, out=out)
                samples[name].append(sample(a, b, out))
    row["samples"] = samples
    row["device"] = {name: statistics.median(device for device, _ in found) for name, found in samples.items()}
    row["host"] = {name: statistics.median(host for _, host in found) for name, found in samples.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    session = session_at(Home("cuda", cupy.cuda.runtime.getDevice()))
    rows = []
    for given in PRODUCTS:
        row = product(*given)
        rows.append(row)
        times = ", ".join(f"{name} {1e6 * row['device'][name]:.1f} (host {1e6 * row['host'][name]:.1f})" for name in ARMS)
        ran = row["kernel"]["enabled"] or row["why"]["enabled"]
        print(f"{row['batch']} {row['M']}×{row['N']}×{row['K']} {row['layout']}: {times} µs; {ran}")
    what = f"python benchmarks/cupy_products.py results/{session.device.slug}/{options.out.name}"
    results.write(options.out, results.record(what, environment(session), [], cupy_products=rows))


if __name__ == "__main__":
    main()
