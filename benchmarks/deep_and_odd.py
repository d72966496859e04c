"""Time every candidate of fp32x's families on a small C with a deep K, and on rows that begin anywhere.

    python benchmarks/deep_and_odd.py results/nvidia-h200/deep-and-odd.json

Gradients of a layer's weights are such products, K being the tokens or the edges of a graph, and so is all that has an odd side.
Each arm is held against float64 on some rows first; then arms take turns with cuBLAS in fp32 and TF32, a CUDA graph each.

It keeps a loop of its own, for arms are CUDA graphs of PyTorch's and toprung's calls.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import inflight
from inflight import compile_all, described, in_turns, operands, packed, started
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.device import Device
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import KernelConfig, KernelFamily
from toprung.kernels.hopper_fp32x.cost import configs as split_beforehand
from toprung.kernels.hopper_fp32x.family import FAMILY as BEFOREHAND
from toprung.kernels.hopper_fp32x.sources import LARGEST_CLUSTER, product_source, reduce_source, split_source
from toprung.kernels.hopper_inflight.config import InflightConfig, aligned
from toprung.kernels.hopper_inflight.config import product_source as inflight_source
from toprung.kernels.hopper_inflight.family import FAMILY as IN_FLIGHT
from toprung.kernels.hopper_inflight_split_k.config import PartsConfig, parts_source
from toprung.kernels.hopper_inflight_split_k.family import FAMILY as IN_PARTS
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SHAPES = (
    ("TN", 1, 256, 256, 262144), ("TN", 1, 256, 513, 262144), ("NN", 1, 262144, 513, 256), ("NT", 1, 262144, 256, 513),
    ("NT", 768, 197, 197, 64), ("NN", 768, 197, 64, 197), ("TN", 768, 64, 197, 197), ("TN", 1, 256, 256, 16384),
    ("TN", 1, 256, 512, 16384), ("TN", 1, 512, 384, 32768), ("TN", 1, 768, 768, 4096), ("TN", 1, 3072, 768, 4096),
    ("TN", 1, 1024, 1024, 4096), ("TN", 1, 1024, 3072, 4096), ("NN", 1, 413, 732, 61981), ("NN", 1, 1405, 399, 71663),
    ("NN", 1, 96, 96, 100000), ("NN", 1, 300, 300, 5000), ("NT", 1, 1000, 600, 9000), ("NN", 1, 128, 4096, 4096),
    ("NT", 1, 200, 3000, 3000), ("NT", 1, 64, 256, 7168), ("TT", 1, 4096, 160, 65536), ("NN", 1, 512, 512, 512),
    ("NN", 1, 1024, 1024, 1024), ("NN", 1, 2048, 2048, 2048), ("NN", 1, 1085, 2219, 2438), ("NN", 1, 2049, 2049, 2049),
    ("NT", 1, 4096, 50257, 1024), ("NT", 1, 4096, 768, 768), ("NT", 1, 4096, 1024, 1024),
)  # fmt: skip
"""Layout, batch, M, N and K: layers of a graph network, a vision transformer and BERT, and others like them."""
SAMPLED = 64
"""Rows of C that are compared with float64."""


def candidates(device: Device, desc: GemmDesc) -> Iterator[tuple[KernelFamily, KernelConfig]]:
    """Yield families with all that they weigh for a product."""
    for config in split_beforehand(desc, device.compute_units) if not BEFOREHAND.supports(device, desc) else ():
        yield BEFOREHAND, config
    for family in (IN_FLIGHT, IN_PARTS):
        if not family.supports(device, desc):
            yield from ((family, config) for config in family.candidates(device, desc))


def source_of(desc: GemmDesc, config: Any) -> Any:
    """Return the source of a candidate's product."""
    if isinstance(config, PartsConfig):
        return parts_source(config, desc)
    if isinstance(config, InflightConfig):
        return inflight_source(config, desc.trans_a, desc.trans_b, *aligned(desc))
    odd = config.slices == 1 and desc.widths[2] == 1
    return product_source(config.variant, **({"ODD_C": 1} if odd else {}))


def measured(session: Any, shape: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    """Return times, errors and predicted seconds of a shape's arms, by the family and the configuration."""
    layout, batch, m, n, k = shape
    a, b = operands(*shape)
    out = torch.empty((batch, m, n), device="cuda")
    desc, some = described(layout, a, b, out), slice(None, None, max(1, m // SAMPLED))
    exact = a[:, some].double() @ b.double()
    arms: dict[str, Callable[[], None]] = {}
    for name, allowed in (("fp32", False), ("tf32", True)):

        def theirs(allowed: bool = allowed) -> None:
            torch.backends.cuda.matmul.allow_tf32 = allowed
            if batch > 1:
                torch.bmm(a, b, out=out)
            else:
                torch.mm(a[0], b[0], out=out[0])
            torch.backends.cuda.matmul.allow_tf32 = False

        arms[name] = theirs
    predicted: dict[str, float] = {}
    for family, config in candidates(session.device, desc):
        name = f"{family.name} {config}"
        arms[name] = functools.partial(started(session, family, desc, config), a, b, out)
        predicted[name] = family.cost(session.device, desc, config)
    row: dict[str, Any] = {
        "layout": layout,
        "size": [batch, m, n, k],
        "seconds": {},
        "error": {},
        "wrong": [],
        "predicted": predicted,
    }
    inflight.CALLS = 2 if batch * m * n * k > 1e10 else 10
    in_turns(row, arms, out[:, some], lambda name: exact, rounds)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which no further shape is begun")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=16)
    options = parser.parse_args()
    session, start = session_at(Home("cuda", 0)), time.perf_counter()
    sources = [reduce_source(), *(split_source(c) for c in range(1, LARGEST_CLUSTER + 1))]
    for shape in SHAPES:
        sources += [source_of(packed(*shape), config) for _, config in candidates(session.device, packed(*shape))]
    compile_all(sources, options.jobs)
    rows: list[dict[str, Any]] = []
    what = f"python benchmarks/deep_and_odd.py results/{session.device.slug}/{options.out.name}"
    for shape in SHAPES:
        if time.perf_counter() - start > options.limit:
            print(f"no time is left for {shape} and what follows")
            break
        row = measured(session, shape, options.rounds)
        rows.append(row)
        times = {name: 1e6 * statistics.median(found) for name, found in row["seconds"].items()}
        ours = sorted((name for name in times if name in row["predicted"]), key=times.__getitem__)[:3]
        guess = min(row["predicted"], key=row["predicted"].__getitem__)
        told = " | ".join(f"{name} {times[name]:.1f} ({1e6 * row['predicted'][name]:.0f})" for name in ours)
        print(
            f"{'×'.join(map(str, shape[1:])):18} {shape[0]} fp32 {times['fp32']:.1f} tf32 {times['tf32']:.1f} | {told} | "
            f"predicted {guess} {times.get(guess, float('nan')):.1f}" + f" WRONG {row['wrong']}" * bool(row["wrong"]),
            flush=True,
        )
        results.write(options.out, results.record(what, environment(session), [], deep_and_odd=rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
