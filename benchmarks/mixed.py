"""Time products of bfloat16 and float32 operands in flight, beside converting first and multiplying with PyTorch.

    python benchmarks/mixed.py results/nvidia-h200/mixed.json

First each block is held against float64 in every layout, pair of types and alignment, on small products with edges, β and Inf. Then
each shape's arms take turns, each a CUDA graph of several calls: toprung.matmul as it selects, the in-flight blocks that its cost
model likes best, and PyTorch's product of what it has converted in the same graph, in fp32 and in TF32. Errors are stored, too.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import inflight
import toprung
from inflight import compile_all, in_turns, started
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_inflight.config import InflightConfig, aligned, product_source, types
from toprung.kernels.hopper_inflight.cost import STAGES, configs, seconds
from toprung.kernels.hopper_inflight.family import FAMILY
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

ROUTER = (4096, 256, 7168)
SHAPES = (ROUTER, *itertools.product((1, 16, 128, 1024, 4096, 16384), (64, 256, 768), (2048, 7168)))
"""M, N and K of routers and output heads, weights as N×K."""

NAMES = {"f": "float32", "h": "float16", "b": "bfloat16"}
KINDS = {"f": torch.float32, "h": torch.float16, "b": torch.bfloat16}
PAIRS = ("ff", "bf", "fb")
UNITS = 132
inflight.CALLS = 6
ROUNDS = 5


def desc_of(pair: str, m: int, n: int, k: int, layout: str = "NT") -> GemmDesc:
    """Return the descriptor of a product without padding, aligned."""
    type_a, type_b = (NAMES[kind] for kind in pair)
    return GemmDesc(
        m,
        n,
        k,
        1,
        layout[0] == "T",
        layout[1] == "T",
        align_a=4,
        align_b=4,
        align_c=4,
        type_a=type_a,
        type_b=type_b,
    )


def weighed(desc: GemmDesc, most: int) -> list[InflightConfig]:
    """Return the blocks of least predicted time."""
    return sorted(configs(desc, UNITS), key=lambda c: seconds(desc, c, UNITS))[:most]


def blocks_of(shape: tuple[int, int, int], desc: GemmDesc) -> list[InflightConfig]:
    """Return the blocks that take part: more for the router."""
    return weighed(desc, 4 if shape == ROUTER else 1)


def small(config: InflightConfig, pair: str, layout: str, padding: int) -> tuple[torch.Tensor, ...]:
    """Return operands with edges, an odd K, and rows ``padding`` words longer."""
    m, n, k = config.BM + 9, config.BN + 7, 75 + 32 * config.SLICES
    rng = torch.Generator("cuda").manual_seed(1)

    def made(rows: int, cols: int, turned: bool, kind: torch.dtype) -> torch.Tensor:
        rows, cols = (cols, rows) if turned else (rows, cols)
        each = 4 // kind.itemsize
        whole = torch.full((rows, -(-cols // (4 * each)) * 4 * each + padding * each), math.nan, device="cuda", dtype=kind)
        x = whole[:, :cols]
        x.copy_(torch.rand((rows, cols), generator=rng, device="cuda") - 0.5)
        return x.mT if turned else x

    return made(m, k, layout[0] == "T", KINDS[pair[0]]), made(k, n, layout[1] == "T", KINDS[pair[1]])


def wrong(session: Any, config: InflightConfig, pair: str, layout: str, padding: int) -> str:
    """Return what is wrong with a small product; empty where nothing is."""
    a, b = small(config, pair, layout, padding)
    a[5, 50], b[3, 7] = math.inf, math.nan
    (m, k), n = a.shape, b.shape[1]
    width = next(w for w in (4, 2, 1) if padding % w == 0)
    ld = [max(x.stride()) for x in (a, b)]
    kinds = {"type_a": NAMES[pair[0]], "type_b": NAMES[pair[1]]}
    desc = GemmDesc(m, n, k, 1, layout[0] == "T", layout[1] == "T", *ld, n + 5, align_a=width, align_b=width, **kinds)
    c = torch.full((m, n + 5), math.nan, device="cuda")
    out, before = c[:, :n], torch.rand((m, n), device="cuda")
    launch = started(session, FAMILY, desc, config)
    x, y = a.double(), b.double()
    for alpha, beta in ((1.0, 0.0), (0.5, 2.0)):
        if beta:
            out.copy_(before)
        launch(a, b, out, alpha, beta)
        torch.cuda.synchronize()
        exact = alpha * (x @ y) + beta * before.double()
        bound = 16 * 2.0**-24 * (alpha * (x.abs() @ y.abs()) + beta * before.double().abs())
        finite = exact.isfinite()
        if not torch.equal(out[~finite].nan_to_num(7.0, 1e38, -1e38), exact[~finite].float().nan_to_num(7.0, 1e38, -1e38)):
            return "other classes than float64 has"
        off = ((out.double() - exact).abs() / bound)[finite]
        if not bool((off <= 1).all()):
            return f"{float(off.nan_to_num(math.inf).max()):.3g} times the bound"
        if not bool(c[:, n:].isnan().all()):
            return "written outside"
    return ""


def cases() -> list[tuple[InflightConfig, str, str, int]]:
    """Return what is held against float64: every block with each layout and side, some with other types and paddings."""
    blocks = [InflightConfig(*block, stages) for block, stages in STAGES.items()]
    found = [(one, *how, 0) for one in blocks for how in (("bf", "NN"), ("bf", "TT"), ("fb", "NN"), ("fb", "NT"), ("bf", "NT"))]
    found += [(blocks[i], pair, "TN", 0) for i in (0, 3) for pair in ("hf", "fh", "bb", "hb")]
    found += [(blocks[0], pair, "NT", padding) for pair in ("bf", "fb") for padding in (1, 2)]
    return found + [(InflightConfig(2, 128, 4, SLICES=2), pair, "NT", 0) for pair in ("bf", "fb")]


def measured(session: Any, shape: tuple[int, int, int], library: bool) -> dict[str, Any]:
    """Return times and errors of a shape's arms in turns."""
    m, n, k = shape
    rng = torch.Generator("cuda").manual_seed(m + n + k)
    drawn = [torch.randn(x, generator=rng, device="cuda") for x in ((m, k), (n, k))]
    out = torch.empty((m, n), device="cuda")
    arms: dict[str, Callable[[], None]] = {}
    exact: dict[str, torch.Tensor] = {}
    predicted: dict[str, float] = {}
    for pair in PAIRS:
        a, b = (x.to(KINDS[kind]) for x, kind in zip(drawn, pair, strict=True))
        exact[pair] = a.double() @ b.double().mT
        if library:
            arms[f"{pair} matmul"] = lambda a=a, b=b: toprung.matmul(a, b.mT, out=out)  # type: ignore[misc]
        desc = desc_of(pair, *shape)
        for config in blocks_of(shape, desc):
            launch = started(session, FAMILY, desc, config)
            arms[f"{pair} {config}"] = lambda a=a, b=b, launch=launch: launch(a, b, out)  # type: ignore[misc]
            predicted[f"{pair} {config}"] = FAMILY.cost(session.device, desc, config)
        for name, allowed in (("fp32", False), ("TF32", True)):

            def theirs(a: torch.Tensor = a, b: torch.Tensor = b, allowed: bool = allowed) -> None:
                torch.backends.cuda.matmul.allow_tf32 = allowed
                torch.mm(a.float(), b.float().mT, out=out)
                torch.backends.cuda.matmul.allow_tf32 = False

            arms[f"{pair} torch {name}"] = theirs
    row: dict[str, Any] = {"size": list(shape), "seconds": {}, "error": {}, "wrong": [], "predicted": predicted}
    in_turns(row, arms, out, lambda name: exact[name[:2]], ROUNDS)
    return row


def line(row: dict[str, Any]) -> str:
    """Return the table's row of a shape, in µs: for each pair matmul, the best block, and PyTorch's two."""
    times = {name: 1e6 * statistics.median(found) for name, found in row["seconds"].items()}
    cells = []
    for pair in PAIRS:
        ours = {name: t for name, t in times.items() if name in row["predicted"] and name[:2] == pair}
        best = min(ours, key=ours.__getitem__) if ours else ""
        whole, fp32, tf32 = (times.get(f"{pair} {name}", math.nan) for name in ("matmul", "torch fp32", "torch TF32"))
        told = 1e6 * row["predicted"].get(best, math.nan)
        cells.append(f"{whole:7.1f} {ours.get(best, math.nan):7.1f} ({told:6.1f} {best[3:]:27}) {fp32:7.1f} {tf32:7.1f}")
    errors = " ".join(f"{row['error'].get(f'{p} torch fp32', math.nan):.1e}" for p in PAIRS)
    found = [max((e for n, e in row["error"].items() if n in row["predicted"] and n[:2] == p), default=math.nan) for p in PAIRS]
    mine, wrong = " ".join(f"{e:.1e}" for e in found), f" WRONG {row['wrong']}" * bool(row["wrong"])
    return f"{'×'.join(map(str, row['size'])):15} {' | '.join(cells)} | errors {mine}, fp32 {errors}{wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=55.0, help="seconds after which no further shape is begun")
    parser.add_argument("--jobs", type=int, default=16)
    options = parser.parse_args()
    start = time.perf_counter()
    session = session_at(Home("cuda", 0))
    tried = cases()
    sources = []
    for config, pair, layout, padding in tried:
        width = {0: 4, 1: 1, 2: 2}[padding]
        macros = types(desc_of(pair, 64, 64, 64))
        sources.append(product_source(config, layout[0] == "T", layout[1] == "T", width, width, **macros))
    for shape, pair in itertools.product(SHAPES, PAIRS):
        desc = desc_of(pair, *shape)
        sources += [product_source(c, False, True, *aligned(desc), **types(desc)) for c in blocks_of(shape, desc)]
    compile_all(sources, options.jobs)
    bad = 0
    for case in tried:
        if reason := wrong(session, *case):
            bad += 1
            print(f"WRONG {case[0]} {case[1]} {case[2]} padding {case[3]}: {reason}", flush=True)
    print(f"{len(tried) - bad} of {len(tried)} small products are right, after {time.perf_counter() - start:.0f} s", flush=True)
    if bad:
        return 1
    rows, lines = [], []
    for shape in SHAPES:
        if time.perf_counter() - start > options.limit:
            print(f"no time is left for {shape} and what follows")
            break
        rows.append(measured(session, shape, True))
        lines.append(line(rows[-1]))
    print("µs, each for fp32·fp32 | bf16·fp32 | fp32·bf16:")
    print("matmul, best block (predicted, which), and of converted operands torch fp32, TF32")
    print("\n".join(lines), flush=True)
    what = f"python benchmarks/mixed.py results/{session.device.slug}/{options.out.name}"
    results.write(options.out, results.record(what, environment(session), [], mixed=rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
