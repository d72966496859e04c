"""Time single products of PyTorch's with toprung enabled: on the device, and on the host.

    python benchmarks/torch_products.py results/nvidia-h200/torch-products.json --layouts NN,NT

Small products, which are left to PyTorch, and larger ones of all kinds, which are taken where they are faster. Device times are
those of CUDA graphs, host times those of calls that the device keeps up with; PyTorch's own and toprung's in turns. Every product
is compared with float64 first.

It keeps a loop of its own, for what is timed are CUDA graphs and the host's share of PyTorch's calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

import toprung.torch
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.dispatch import ranking
from toprung.gemm.layout import Layout
from toprung.gemm.lowering import lower
from toprung.kernels.base import candidates
from toprung.kernels.registry import families
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SMALL = (
    (1, 16, 16, 16), (1, 32, 32, 32), (1, 64, 64, 64), (1, 96, 96, 96), (1, 128, 128, 128), (1, 192, 192, 192),
    (1, 256, 256, 256), (1, 384, 384, 384), (1, 32, 768, 768), (1, 8, 4096, 1024), (1, 128, 512, 512), (1, 64, 1024, 1024),
    (1, 1, 4096, 4096), (1, 512, 64, 512), (1, 512, 512, 32), (8, 64, 64, 64), (64, 32, 32, 32), (96, 64, 64, 64),
    (48, 128, 128, 64), (48, 128, 64, 128), (4, 128, 128, 128), (12, 256, 64, 64),
)  # fmt: skip
"""Batch, M, N and K of products of less than 5e8 operations."""

LARGE = (
    (1, 512, 512, 1024), (1, 640, 640, 640), (1, 768, 768, 768), (1, 1024, 1024, 1024), (1, 2048, 2048, 2048),
    (1, 4096, 4096, 4096), (64, 1024, 1024, 64), (64, 1024, 64, 1024), (64, 64, 1024, 1024), (1024, 64, 64, 64),
    (256, 128, 128, 128), (64, 256, 256, 256), (32, 512, 512, 512), (384, 128, 128, 64), (384, 128, 64, 128),
    (96, 512, 512, 64), (96, 512, 64, 512), (1, 128, 4096, 4096), (1, 64, 4096, 4096), (1, 16, 4096, 4096),
    (1, 4096, 256, 7168), (1, 256, 256, 7168), (1, 16384, 128, 2048), (1, 4096, 1024, 1024), (1, 4096, 3072, 1024),
    (1, 4096, 1024, 4096), (1, 4096, 768, 768), (1, 4096, 3072, 768), (1, 4096, 4096, 64), (1, 4096, 4096, 128),
    (1, 8192, 8192, 64), (1, 8192, 8192, 256), (16, 1024, 1024, 128), (16, 1024, 1024, 256), (1, 1000, 1000, 1000),
    (1, 2500, 700, 900), (8, 700, 300, 500), (1, 30000, 100, 100), (1, 100, 100, 30000), (1, 4096, 50304, 1024),
    (3, 2000, 2000, 30), (1, 1500, 1500, 48),
)  # fmt: skip
"""Batch, M, N and K of larger products, among them those of transformers' layers and attention."""

LAYOUTS = ("NN", "NT", "TN")
WARM, CALLS, ROUNDS = 3, 20, 5
"""Calls before anything is measured, calls of a sample, samples of each arm."""

ARMS = {
    "toprung": {},
    "fp32": {"precision": "fp32", "own": True, "min_flops": 0},
    "fp32x": {"precision": "fp32x", "own": True, "min_flops": 0},
}
"""Settings: the default ones, and each path forced, which shows what another choice would have taken."""


def operands(size: tuple[int, ...], layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    batch, m, n, k = size
    rng = torch.Generator("cuda").manual_seed(m + n + k)

    def drawn(rows: int, cols: int, turned: bool) -> torch.Tensor:
        shape = (batch, cols, rows) if turned else (batch, rows, cols)
        made = torch.rand(shape, generator=rng, device="cuda").sub(0.5)
        made = made.mT if turned else made
        return made[0] if batch == 1 else made

    return drawn(m, k, layout[0] == "T"), drawn(k, n, layout[1] == "T")


def captured(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.cuda.CUDAGraph:
    """A graph of ``CALLS`` products, after a warm-up on another stream."""
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            multiply(a, b, out=out)
        toprung.torch.wait()
        multiply(a, b, out=out)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            multiply(a, b, out=out)
    return graph


def device_seconds(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / CALLS


def host_seconds(a: torch.Tensor, b: torch.Tensor, calls: int = 200) -> float:
    """Seconds of Python and PyTorch for a product without ``out``; the queue is emptied often enough never to be full."""
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    total = 0.0
    for _ in range(calls // 20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            multiply(a, b)
        total += time.perf_counter() - start
    torch.cuda.synchronize()
    return total / calls


def predicted(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> dict[str, float]:
    """Return predicted seconds by the cost models: toprung's best in each class, and cuBLAS."""
    device = session_at(Home("cuda", 0)).device
    layouts = [Layout(tuple(t.shape), tuple(t.stride()), 4) for t in (a, b, out)]
    descs = lower(*layouts, 0.0).descs
    if len(descs) != 1:
        return {}
    (desc,) = descs
    found = {}
    for name, precision in (("fp32", "fp32"), ("fp32x", "fp32x")):
        order = ranking.ranked(device, desc, precision)
        found[name] = order[0].seconds if order else None
    theirs = next(f for f in families() if f.name == "cublas")
    found["cublas"] = min((theirs.cost(device, desc, c) for c in candidates(theirs, device, desc)), default=None)
    return found


def product(size: tuple[int, ...], layout: str, arms: dict[str, dict]) -> dict:
    """Device and host times of a product, PyTorch's own and with toprung enabled in several ways, in turns."""
    a, b = operands(size, layout)
    oracle = a.double() @ b.double()
    row = {"size": size, "layout": layout, "device": {}, "host": {}, "error": {}, "kernel": {}, "why": {}}
    graphs = {}
    for name, settings in {"torch": None, **arms}.items():
        out = torch.full(oracle.shape, float("nan"), device="cuda")
        toprung.torch.products.forget()
        with toprung.torch.exclude() if settings is None else toprung.torch.use(**settings):
            graph = captured(a, b, out)
        rows = toprung.torch.report().rows
        row["kernel"][name] = next((r.kernel for r in rows), "")
        row["why"][name] = next((r.why for r in rows), "small" if settings is not None else "")
        out.fill_(float("nan"))
        graph.replay()
        error = float((out - oracle).norm() / oracle.norm())
        row["error"][name] = error
        if not error < 1e-5:
            raise SystemExit(f"{size} {layout} {name}: wrong by {error}")
        graphs[name] = graph, out
    del oracle
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    hosts: dict[str, list[float]] = {name: [] for name in ("torch", "toprung") if name in graphs}
    for _ in range(ROUNDS):
        for name, (graph, _) in graphs.items():
            samples[name].append(device_seconds(graph))
        if 2 * size[0] * size[1] * size[2] * size[3] < 3e9:
            for name in hosts:
                with toprung.torch.exclude() if name == "torch" else toprung.torch.use(**arms[name]):
                    host_seconds(a, b, 20)
                    hosts[name].append(host_seconds(a, b))
    row["device"] = {name: statistics.median(found) for name, found in samples.items()}
    row["host"] = {name: min(found) for name, found in hosts.items() if found}
    row["samples"] = samples
    row["predicted"] = predicted(a, b, torch.empty(graphs["torch"][1].shape, device="cuda"))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=["small", "large"])
    parser.add_argument("--layouts", default="NN", help="some of NN, NT and TN, with commas")
    options = parser.parse_args()
    session = session_at(Home("cuda", torch.cuda.current_device()))
    rows = []
    for kind, sizes in (("small", SMALL), ("large", LARGE)):
        for size in sizes if options.only in (None, kind) else ():
            for layout in options.layouts.split(","):
                arms = {"toprung": ARMS["toprung"]} if kind == "small" else ARMS
                row = {"kind": kind, **product(size, layout, arms)}
                rows.append(row)
                times = " ".join(f"{name} {1e6 * seconds:.1f}" for name, seconds in row["device"].items())
                hosts = " ".join(f"{name} {1e6 * seconds:.1f}" for name, seconds in row["host"].items())
                print(f"{'×'.join(map(str, size)):20} {layout} {times} | host {hosts} | {row['kernel']['toprung'][:30]}")
    what = f"python benchmarks/torch_products.py results/{session.device.slug}/{options.out.name}"
    results.write(options.out, results.record(what, environment(session), [], torch_products=rows))


if __name__ == "__main__":
    main()
