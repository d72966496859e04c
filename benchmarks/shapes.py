"""Time products of PyTorch programs by ``toprung.matmul``, PyTorch in fp32 and PyTorch in TF32, and say the geometric mean.

    python benchmarks/shapes.py results/nvidia-h200/shapes.json

Nineteen products: squares, attention, batches of small ones, a few rows, routers, layers of a GPT of width 1024. Each is compared
with float64 first; then the three take turns, each a CUDA graph of several calls, so that the host has no part in it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import inflight
import toprung
from inflight import in_turns
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SHAPES = (
    (1, 256, 256, 256, "NN"), (1, 512, 512, 512, "NN"), (1, 1024, 1024, 1024, "NN"), (1, 2048, 2048, 2048, "NN"),
    (64, 1024, 1024, 64, "NT"), (64, 1024, 64, 1024, "NN"), (1024, 64, 64, 64, "NN"), (256, 128, 128, 128, "NN"),
    (64, 256, 256, 256, "NN"), (32, 512, 512, 512, "NN"), (1, 128, 4096, 4096, "NN"), (1, 16, 4096, 4096, "NN"),
    (1, 4096, 256, 7168, "NT"), (1, 64, 256, 7168, "NT"), (1, 16384, 128, 2048, "NT"), (1, 4096, 1024, 1024, "NT"),
    (1, 4096, 3072, 1024, "NT"), (1, 4096, 1024, 4096, "NT"), (1, 1024, 3072, 4096, "TN"),
)  # fmt: skip
"""Batch, M, N, K and layout."""
ROUNDS = 7
inflight.CALLS = 10


def stored(count: int, rows: int, cols: int, turned: bool, rng: torch.Generator) -> torch.Tensor:
    """Return matrices of normal numbers, or a view of their transposes."""
    shape = (count, cols, rows) if turned else (count, rows, cols)
    x = torch.randn(shape if count > 1 else shape[1:], generator=rng, device="cuda")
    return x.mT if turned else x


def measured(count: int, m: int, n: int, k: int, layout: str) -> dict[str, Any]:
    """Return times and errors of a product."""
    rng = torch.Generator("cuda").manual_seed(m + n + k)
    a, b = stored(count, m, k, layout[0] == "T", rng), stored(count, k, n, layout[1] == "T", rng)
    out = torch.empty((count, m, n) if count > 1 else (m, n), device="cuda")
    exact = a.double() @ b.double()

    def theirs(allowed: bool) -> Callable[[], None]:
        def run() -> None:
            torch.backends.cuda.matmul.allow_tf32 = allowed
            torch.matmul(a, b, out=out)
            torch.backends.cuda.matmul.allow_tf32 = False

        return run

    arms = {"toprung": lambda: toprung.matmul(a, b, out=out), "torch fp32": theirs(False), "torch TF32": theirs(True)}
    row: dict[str, Any] = {"size": [count, m, n, k], "layout": layout, "seconds": {}, "error": {}, "wrong": []}
    in_turns(row, arms, out, lambda name: exact, ROUNDS)
    receipt = toprung.last_receipt()
    row["kernel"] = "" if receipt is None else ", ".join(receipt.kernels)
    return row


def line(row: dict[str, Any]) -> str:
    """Return the table's row of a product, in µs."""
    ours, fp32, tf32 = (1e6 * statistics.median(row["seconds"][name]) for name in ("toprung", "torch fp32", "torch TF32"))
    name = "×".join(map(str, row["size"])) + f" {row['layout']}"
    errors = "  ".join(f"{row['error'][n]:.1e}" for n in ("toprung", "torch fp32"))
    wrong = f" WRONG {row['wrong']}" * bool(row["wrong"])
    return f"{name:24} {ours:8.1f} {fp32:8.1f} {tf32:8.1f}  {fp32 / ours:5.2f} {ours / tf32:5.2f}  {errors}  {row['kernel']}{wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    session = session_at(Home("cuda", 0))
    print("µs: toprung, torch fp32, torch TF32; fp32 / toprung, toprung / TF32; errors of toprung and of torch fp32; kernel")
    what, rows = f"python benchmarks/shapes.py results/{session.device.slug}/{options.out.name}", []
    for shape in SHAPES:
        rows.append(measured(*shape))
        print(line(rows[-1]), flush=True)
        results.write(options.out, results.record(what, environment(session), [], shapes=rows))
    wrong = [row for row in rows if row["wrong"]]
    shares = [statistics.median(r["seconds"]["toprung"]) / statistics.median(r["seconds"]["torch TF32"]) for r in rows]
    print(f"toprung / TF32: geometric mean {statistics.geometric_mean(shares):.3f}; {len(wrong)} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
