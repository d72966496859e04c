"""Time every configuration of fp32x in flight beside cuBLAS in fp32 and TF32, and fp32x that splits operands beforehand.

    python benchmarks/inflight.py results/nvidia-h200/inflight.json --limit 240

First each block is held against float64 on small products in every layout and alignment, and on hostile values. Then each shape's
candidates take turns with PyTorch's own product and toprung's other path, each a CUDA graph of several calls; errors are stored
with times. Kernels are compiled by several processes beforehand.

It keeps a loop of its own, for arms are CUDA graphs of PyTorch's and toprung's calls.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.gemm.desc import GemmDesc
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper_fp32x.family import FAMILY as BEFOREHAND
from toprung.kernels.hopper_inflight.config import InflightConfig, aligned, product_source
from toprung.kernels.hopper_inflight.cost import RINGS, configs
from toprung.kernels.hopper_inflight.family import FAMILY
from toprung.kernels.launch import launches_of
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SHAPES = (
    ("NN", 1, 256, 256, 256), ("NN", 1, 512, 512, 512), ("NN", 1, 1024, 1024, 1024), ("NN", 1, 2048, 2048, 2048),
    ("NT", 64, 1024, 1024, 64), ("NN", 64, 1024, 64, 1024), ("NN", 1024, 64, 64, 64), ("NN", 256, 128, 128, 128),
    ("NN", 64, 256, 256, 256), ("NN", 32, 512, 512, 512), ("NN", 1, 128, 4096, 4096), ("NN", 1, 16, 4096, 4096),
    ("NT", 1, 4096, 256, 7168), ("NT", 1, 64, 256, 7168), ("NT", 1, 16384, 128, 2048), ("NT", 1, 4096, 1024, 1024),
    ("NT", 1, 4096, 3072, 1024), ("NT", 1, 4096, 1024, 4096), ("TN", 1, 1024, 3072, 4096),
)  # fmt: skip
"""Layout, batch, M, N and K: a transformer's layers, attention, routers, batches, and squares."""

FITTED_SEED, FITTED, ODD = 11, 32, 16


def drawn_shapes(seed: int = FITTED_SEED, count: int = FITTED + ODD) -> list[tuple[Any, ...]]:
    """Shapes to fit the cost model on, none of those above: layouts, batches and sizes of the kind that the family is for.

    The last ODD of them have rows that begin anywhere.
    """
    rng, found = random.Random(seed), []
    while len(found) < count:
        step = 4 if len(found) < FITTED else 1
        batch = rng.choice((1, 1, 1, 4, 16, 64, 256))
        m, n, k = (int(2 ** rng.uniform(5, 12)) // step * step for _ in range(3))
        shape = (rng.choice(("NN", "NT", "TN", "TT")), batch, m, n, max(k, 64))
        if 2**20 < batch * m * n * shape[4] < 2**35 and batch * m * n < 2**27 and shape not in SHAPES:
            found.append(shape)
    return found


CALLS, ROUNDS = 10, 7
"""Calls of a graph; samples of each arm."""


def operands(layout: str, batch: int, m: int, n: int, k: int, skip: int = 0, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B as they are multiplied, views of rows that are ``padding`` longer than they need be, ``skip`` elements in."""
    rng = torch.Generator("cuda").manual_seed(m + n + k)

    def drawn(rows: int, cols: int, turned: bool) -> torch.Tensor:
        rows, cols = (cols, rows) if turned else (rows, cols)
        flat = torch.full((skip + batch * rows * (cols + padding),), float("nan"), device="cuda")
        made = flat[skip:].view(batch, rows, cols + padding)[:, :, :cols]
        made.copy_(torch.rand(made.shape, generator=rng, device="cuda") - 0.5)
        return made.mT if turned else made

    return drawn(m, k, layout[0] == "T"), drawn(k, n, layout[1] == "T")


def packed(layout: str, batch: int, m: int, n: int, k: int) -> GemmDesc:
    """The descriptor of a batch of matrices without padding, which begin on 16 bytes."""
    turned, strides = (layout[0] == "T", layout[1] == "T"), (m * k, k * n, m * n) if batch > 1 else (0, 0, 0)
    return GemmDesc(m, n, k, batch, *turned, 0, 0, 0, *strides, 4, 4, 4, beta_zero=True)


def described(layout: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> GemmDesc:
    def of(x: torch.Tensor, turned: bool) -> tuple[int, int, int]:
        align = next(w for w in (4, 2, 1) if x.data_ptr() % (4 * w) == 0)
        return x.stride(2 if turned else 1), x.stride(0) if len(x) > 1 else 0, align

    (lda, on_a, al_a), (ldb, on_b, al_b), (ldc, on_c, al_c) = of(a, layout[0] == "T"), of(b, layout[1] == "T"), of(c, False)
    (_, M, K), N = a.shape, b.shape[2]
    turned = layout[0] == "T", layout[1] == "T"
    return GemmDesc(M, N, K, len(a), *turned, lda, ldb, ldc, on_a, on_b, on_c, al_a, al_b, al_c, beta_zero=True)


def started(session: Any, family: Any, desc: GemmDesc, config: Any) -> Callable[..., None]:
    """A function of three tensors that launches in PyTorch's stream."""
    run = launches_of(session, desc, family, config).starter()
    workspace = torch.empty(family.workspace_bytes(session.device, desc, config) // 4 + 64, device="cuda")

    def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        run(a.data_ptr(), 0, b.data_ptr(), 0, c.data_ptr(), 0, alpha, beta, stream, workspace.data_ptr())

    return launch


def blocks() -> Iterator[InflightConfig]:
    for ring, slices in itertools.product(RINGS, (1, 2, 8, 16)):
        yield InflightConfig(*ring, SLICES=slices)


def layouts() -> Iterator[tuple[str, int]]:
    yield from (("NN", 0), ("NT", 0), ("TN", 0), ("TT", 0), ("NN", 1), ("TT", 2), ("NT", 1))


HOSTILE = ("special", "wide", "tiny", "huge", "subnormal", "rising", "falling", "zeros")


def made_hostile(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    if name == "special":
        a[0, 5, 50], a[0, -1, 10], b[0, 3, 7] = math.inf, -math.inf, math.nan
    elif name == "wide":
        for x in (a, b):
            x.mul_(torch.exp(4 * torch.randn(x.shape, device="cuda")))
    elif name == "tiny":
        a.mul_(2.0**-100), b.mul_(2.0**-35)
    elif name == "huge":
        a.mul_(2.0**-60), b.mul_(2.0**127)
    elif name == "subnormal":
        a.mul_(2.0**-130), b.mul_(2.0**60)
    elif name in ("rising", "falling"):  # from 32 of K to the next, where B has zeros
        steps = torch.exp2(60.0 * (torch.arange(a.shape[2], device="cuda") // 32).clamp(max=2) - 60)
        a.mul_(steps if name == "rising" else steps.flip(0)), b.mul_(2.0**-30)
        b[:, slice(32, None) if name == "rising" else slice(0, 64), 5:20] = 0
    elif name == "zeros":
        a[:, 3:60] = 0
        b[:, :, 7] = 0


def wrong(session: Any, config: InflightConfig, layout: str, skip: int, hostile: str = "") -> str:
    """Return what is wrong with a small product of a configuration, with edges, β and guards; empty where nothing is."""
    m, n, k = config.BM + 9, config.BN + 6, 75 + 64 * config.SLICES
    a, b = operands(layout, 2, m, n, k, skip, 4 - skip)
    made_hostile(hostile, a, b)
    c = torch.full((2, m, n + 5), math.nan, device="cuda")
    out = c[:, :, :n]
    before = torch.rand(out.shape, device="cuda")
    desc = described(layout, a, b, out)
    launch = started(session, FAMILY, desc, config)
    x, y = a.double(), b.double()
    for alpha, beta in ((1.0, 0.0), (0.5, 2.0)):
        if beta:
            out.copy_(before)
        launch(a, b, out, alpha, beta)
        torch.cuda.synchronize()
        exact = alpha * (x @ y) + beta * before.double()
        bound = 16 * 2.0**-24 * (alpha * (x.abs() @ y.abs()) + beta * before.double().abs()) + 16 * 2.0**-149
        finite = exact.isfinite()
        if not torch.equal(out[~finite].nan_to_num(7.0, 1e38, -1e38), exact[~finite].float().nan_to_num(7.0, 1e38, -1e38)):
            return "other classes than float64 has"
        off = ((out.double() - exact).abs() / bound)[finite]
        if not bool((off <= 1).all()):
            return f"{float(off.nan_to_num(math.inf).max()):.3g} times the bound"
        if not bool(c[:, :, n:].isnan().all()):
            return "written outside"
    return ""


def compiled(sources: list[Any]) -> int:
    session = session_at(Home("cuda", 0))
    for source in sources:
        kernel_of(session, source)
    return len(sources)


def compile_all(sources: list[Any], jobs: int) -> None:
    """Fill the cache of binaries."""
    unlike = list({(s.text, s.defines_text()): s for s in sources}.values())
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        done = sum(pool.map(compiled, [unlike[i::jobs] for i in range(jobs)]))
    print(f"{done} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)


def graph_of(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    return graph


def seconds_of(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / CALLS


def in_turns(
    row: dict[str, Any],
    arms: Mapping[str, Callable[[], None]],
    out: torch.Tensor,
    exact: Callable[[str], torch.Tensor],
    rounds: int,
) -> None:
    """Verify arms that write ``out``, time those that are right in turns, a graph of ``CALLS`` each, and fill in a row.

    ``exact``: the float64 result by an arm's name. An arm is wrong above a Frobenius error of 5e-6, with TF32 in its name above
    1e-2.
    """
    graphs = {}
    for name, run in arms.items():
        out.fill_(math.nan)
        graphs[name] = graph_of(run)
        graphs[name].replay()
        right = exact(name)
        row["error"][name] = error = float((out.double() - right).norm() / right.norm())
        if not error < (1e-2 if "tf32" in name.lower() else 5e-6):
            row["wrong"].append(name)
            del graphs[name]
    row["seconds"] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            row["seconds"][name].append(seconds_of(graph))


def measured(session: Any, shape: tuple[Any, ...]) -> dict[str, Any]:
    """Return times and errors of a shape's arms in turns."""
    layout, batch, m, n, k = shape
    a, b = operands(*shape)
    exact = a.double() @ b.double()
    arms: dict[str, Callable[[torch.Tensor], None]] = {}
    for name, allowed in (("fp32", False), ("tf32", True)):

        def theirs(out: torch.Tensor, allowed: bool = allowed) -> None:
            torch.backends.cuda.matmul.allow_tf32 = allowed
            torch.bmm(a, b, out=out)
            torch.backends.cuda.matmul.allow_tf32 = False

        arms[name] = theirs
    desc = described(layout, a, b, torch.empty(exact.shape, device="cuda"))
    if not BEFOREHAND.supports(session.device, desc):
        (config,) = BEFOREHAND.candidates(session.device, desc)
        launch = started(session, BEFOREHAND, desc, config)
        arms["beforehand"] = lambda out, launch=launch: launch(a, b, out)  # type: ignore[misc]
    weighed = configs(desc, session.device.compute_units)
    for config in weighed:
        launch = started(session, FAMILY, desc, config)
        arms[str(config)] = lambda out, launch=launch: launch(a, b, out)  # type: ignore[misc]
    row: dict[str, Any] = {"layout": layout, "size": [batch, m, n, k], "seconds": {}, "error": {}, "wrong": [], "predicted": {}}
    row["predicted"] = {str(c): FAMILY.cost(session.device, desc, c) for c in weighed}
    out = torch.empty(exact.shape, device="cuda")
    in_turns(row, {name: functools.partial(run, out) for name, run in arms.items()}, out, lambda name: exact, ROUNDS)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which no further shape is begun")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--parts", default="right,time", help="right, time, and fit for the shapes that the model is fitted on")
    parser.add_argument("--only", default="", help="numbers of shapes, with commas")
    options = parser.parse_args()
    parts, start = options.parts.split(","), time.perf_counter()
    known = [*SHAPES, *drawn_shapes()] if "fit" in parts else SHAPES
    shapes = [s for i, s in enumerate(known) if not options.only or str(i) in options.only.split(",")]
    units = 132
    sources = []
    if "right" in parts:
        for config, (layout, skip) in itertools.product(blocks(), layouts()):
            align = {0: 4, 1: 1, 2: 2}[skip]
            sources.append(product_source(config, layout[0] == "T", layout[1] == "T", align, align))
    if "time" in parts:
        for shape in shapes:
            desc = packed(*shape)
            sources += [product_source(c, desc.trans_a, desc.trans_b, *aligned(desc)) for c in configs(desc, units)]
    compile_all(sources, options.jobs)
    session = session_at(Home("cuda", 0))
    if "right" in parts:
        bad = 0
        tried = [(c, *how, "") for c, how in itertools.product(blocks(), layouts())]
        tried += [(c, "NT", 0, name) for c, name in itertools.product(blocks(), HOSTILE)]
        for config, layout, skip, hostile in tried:
            if reason := wrong(session, config, layout, skip, hostile):
                bad += 1
                print(f"WRONG {config} {layout} aligned to {4 - skip} {hostile}: {reason}", flush=True)
        print(f"{len(tried) - bad} of {len(tried)} small products are right, after {time.perf_counter() - start:.0f} s", flush=True)
        if bad:
            return 1
    rows = []
    for shape in shapes if "time" in parts else ():
        if time.perf_counter() - start > options.limit:
            print(f"no time is left for {shape} and what follows")
            break
        row = measured(session, shape)
        rows.append(row)
        times = {name: statistics.median(found) for name, found in row["seconds"].items()}
        ours = {name: t for name, t in times.items() if name not in ("fp32", "tf32", "beforehand")}
        best = min(ours, key=ours.__getitem__) if ours else ""
        others = " ".join(f"{name} {1e6 * times[name]:.1f}" for name in ("fp32", "tf32", "beforehand") if name in times)
        guess = min(row["predicted"], key=row["predicted"].__getitem__)
        found, errors = {name: 1e6 * t for name, t in times.items()}, row["error"]
        print(
            f"{'×'.join(map(str, shape[1:])):18} {shape[0]} {others} | {best} {found.get(best, math.nan):.1f} (predicted {guess}"
            f" {found.get(guess, math.nan):.1f}, {1e6 * row['predicted'][guess]:.1f}) error {errors.get(best, math.nan):.2g}"
            f" fp32 {errors['fp32']:.2g}" + f" WRONG {row['wrong']}" * bool(row["wrong"]),
            flush=True,
        )
    if rows:
        what = f"python benchmarks/inflight.py results/{session.device.slug}/{options.out.name}"
        results.write(options.out, results.record(what, environment(session), [], inflight=rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
