"""Time the splitting pass against its floor, a copy of as many bytes: rows along K, and across it.

    python benchmarks/splitting.py results/nvidia-h200/splitting-pass.json

The two take turns, each a CUDA graph of several launches; "cold" ones go around operands and terms that L2 does not hold together,
"warm" ones work on one. The floor is a device-to-device copy of the operand: it reads and writes as many bytes. Two records in the
repository's history have forms of the pass across K that were slower, and are gone: ``splitting.json`` clusters that stayed and
streamed strips through shared memory, ``splitting-blocks.json`` blocks of 256 and of 1024 threads. In both, blocks of a cluster
also met behind their stores, which cost more than all of that.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candidates import compile_all
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.backends.plan import ALPHA, PACKED, WORKSPACE, Address, B, KernelLaunch, Plan
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.sizes import width
from toprung.kernels.hopper_fp32x.sources import LARGEST_CLUSTER, SPLIT_THREADS, split_source, spread, walk
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SHAPES = (
    (1024, 1024),
    (1024, 4096),
    (3072, 4096),
    (4096, 1024),
    (4096, 3072),
    (4096, 4096),
    (2048, 2048),
    (16384, 2048),
    (50257, 1024),
)
"""Rows and K of operands of a GPT's step on 4096 tokens, of squares and of a router."""
COLD = 160 << 20
"""Bytes of operands and of terms that cold launches go around: three times what L2 holds."""
UNITS = 132
ROUNDS = 7

Arm = Callable[[int, int, int, int], None]
"""A launch by the addresses of operand, terms and what stands beside them, and a stream."""


def shipped(session: Any, rows: int, K: int, ld: int, across: bool) -> Arm:
    """Return the pass."""
    i, long, cluster = np.int32, np.int64, spread(K, across)
    lanes, blocks = walk(rows, 1, K, across, UNITS, cluster)
    arguments = (
        np.uint64(0), Address(B), ALPHA, np.uint64(0), np.uint64(0), Address(WORKSPACE), Address(PACKED), i(K), i(K), i(1), i(0),
        long(1), long(0), i(1), i(0), i(0), long(ld), long(0), i(rows), i(1), i(lanes),
    )  # fmt: skip
    kernel = kernel_of(session, split_source(cluster))
    run = session.launcher(Plan([KernelLaunch("split", kernel, (blocks,), (SPLIT_THREADS,), arguments)]))

    def launch(x: int, terms: int, info: int, stream: int) -> None:
        run(0, 0, x, 0, 0, 0, 1.0, 0.0, stream, terms, packed=info)

    return launch


def memory(rows: int, K: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return terms and what stands beside them, filled with what is no result."""
    terms = torch.full((rows, width(K)), 0x2A2A, dtype=torch.int16, device="cuda")
    return terms, torch.full((rows, 2), 0x2A2A2A2A, dtype=torch.int32, device="cuda")


def measured(session: Any, rows: int, K: int) -> dict[str, Any]:
    """Return seconds of a launch, cold and warm, of each arm in turns."""
    copies = max(2, ceil(COLD, 4 * rows * K))
    operands = [torch.randn((K, rows), device="cuda") for _ in range(copies)]
    left = [memory(rows, K) for _ in range(copies)]
    arms: dict[str, Arm] = {"along": shipped(session, rows, K, K, False), "across": shipped(session, rows, K, rows, True)}
    row: dict[str, Any] = {"rows": rows, "K": K, "seconds": {}}
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
    for (name, arm), cold in itertools.product([*arms.items(), ("copy", None)], (True, False)):
        calls = copies if cold else 8

        def run(arm: Arm | None = arm, cold: bool = cold, calls: int = calls) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for n in range(calls):
                x, (terms, info) = operands[n * cold], left[n * cold]
                if arm is None:
                    terms[:, : 2 * K].view(torch.float32).copy_(x.view(rows, K))
                else:
                    arm(x.data_ptr(), terms.data_ptr(), info.data_ptr(), stream)

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graphs[f"{name}, {'cold' if cold else 'warm'}"] = graph, calls
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(ROUNDS):
        for name, (graph, calls) in graphs.items():
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) * 1e-3 / calls)
    row["seconds"] = samples
    return row


def line(row: dict[str, Any]) -> str:
    """Return the table's row of a shape: µs of the copy, and the arms' times as multiples of it, cold and warm."""
    times = {name: 1e6 * statistics.median(found) for name, found in row["seconds"].items()}
    cells = [f"{row['rows']:6}×{row['K']:<5}"]
    for heat in ("cold", "warm"):
        floor = times[f"copy, {heat}"]
        cells.append(f"{floor:8.1f} " + " ".join(f"{times[f'{arm}, {heat}'] / floor:6.2f}" for arm in ("along", "across")))
    return " | ".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    session = session_at(Home("cuda", 0))
    compile_all(session, [split_source(c) for c in range(1, LARGEST_CLUSTER + 1)])
    print("rows×K | cold: copy, µs; along, across as multiples of it | warm: the same")
    what, rows = f"python benchmarks/splitting.py results/{session.device.slug}/{options.out.name}", []
    for shape in SHAPES:
        rows.append(measured(session, *shape))
        print(line(rows[-1]), flush=True)
        results.write(options.out, results.record(what, environment(session), [], splitting=rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
