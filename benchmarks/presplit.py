"""Time products of an A split in flight and a B split beforehand, beside the other two ways to fp32's accuracy, cuBLAS and TF32.

    python benchmarks/presplit.py results/nvidia-h200/presplit-launch.json

First each block is held against float64 in every layout, type of A and alignment, on small products with edges, β and Inf. Then
each shape's arms take turns, each a CUDA graph of several calls: every block, with B split in the launch itself where its K runs
along memory ("one"), by a pass before it ("presplit"), and prepacked;
fp32x with both operands split beforehand; the in-flight block that its cost model likes best; and PyTorch's products in fp32 and
in TF32 (of a bfloat16 A: converted in the graph). Errors against float64 are stored, too.
``presplit.json``, in the repository's history, was measured before the launch split B itself, on a GPT's step besides.
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
from inflight import compile_all, in_turns, started
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_fp32x.family import FAMILY as FP32X
from toprung.kernels.hopper_fp32x.launches import SplitOperand
from toprung.kernels.hopper_fp32x.sources import product_source as fp32x_source
from toprung.kernels.hopper_inflight.config import aligned, types
from toprung.kernels.hopper_inflight.config import product_source as inflight_source
from toprung.kernels.hopper_inflight.cost import configs, seconds
from toprung.kernels.hopper_inflight.family import FAMILY as INFLIGHT
from toprung.kernels.hopper_presplit.config import BLOCKS, PresplitConfig, product_source
from toprung.kernels.hopper_presplit.family import FAMILY
from toprung.kernels.hopper_presplit.launches import PresplitLaunches
from toprung.kernels.launch import launches_of
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SHAPES = (
    ("f", "NT", 4096, 256, 7168), ("b", "NT", 4096, 256, 7168), ("f", "NT", 16384, 128, 2048), ("f", "NT", 4096, 1024, 1024),
    ("f", "NT", 1024, 256, 7168), ("b", "NT", 16384, 64, 2048), ("b", "NT", 16384, 256, 4096), ("f", "NN", 4096, 256, 7168),
    ("f", "NT", 4096, 768, 2048), ("b", "NT", 4096, 64, 7168), ("b", "NT", 1024, 768, 2048), ("f", "TN", 1024, 1024, 4096),
    ("f", "NT", 1024, 1024, 1024), ("b", "NN", 2048, 512, 4096), ("f", "NT", 2048, 2048, 2048), ("f", "TN", 4096, 512, 1024),
    ("h", "NT", 4096, 512, 4096), ("f", "TT", 3000, 384, 5000), ("b", "NT", 128, 768, 7168), ("f", "NT", 512, 512, 8192),
    ("f", "NN", 8192, 192, 3072), ("b", "TN", 6000, 320, 2560), ("f", "NT", 32768, 96, 1024), ("b", "NT", 4096, 128, 4096),
)  # fmt: skip
"""Type of A, layout, M, N and K: routers and heads, products of a GPT's step, squares, and drawn ones."""

NAMES = {"f": "float32", "h": "float16", "b": "bfloat16"}
KINDS = {"f": torch.float32, "h": torch.float16, "b": torch.bfloat16}
UNITS = 132
ROUNDS = 5
inflight.CALLS = 4


def desc_of(kind: str, layout: str, m: int, n: int, k: int) -> GemmDesc:
    """Return the descriptor of a product without padding, aligned."""
    how = {"align_a": 4, "align_b": 4, "align_c": 4, "type_a": NAMES[kind]}
    return GemmDesc(m, n, k, 1, layout[0] == "T", layout[1] == "T", **how)


def blocks(slices: tuple[int, ...] = (1,)) -> list[PresplitConfig]:
    """Return every block there is."""
    return [PresplitConfig(c, cols, stages, SLICES=n) for ((c, cols), stages), n in itertools.product(BLOCKS.items(), slices)]


def tried(desc: GemmDesc) -> list[PresplitConfig]:
    """Return the blocks that take part: with slices where tiles are fewer than SMs."""
    found = []
    for config in blocks((1, 2, 4, 8)):
        count = -(-desc.M // config.BM) * -(-desc.N // config.BN)
        if config.SLICES == 1 or count * config.SLICES <= UNITS * config.resident:
            found.append(config)
    return found


def other(desc: GemmDesc) -> Any:
    """Return the in-flight block of least predicted time."""
    return min(configs(desc, UNITS), key=lambda c: seconds(desc, c, UNITS))


def wrong(session: Any, config: PresplitConfig, kind: str, layout: str, padding: int) -> str:
    """Return what is wrong with a small product with edges, an odd K and rows ``padding`` words longer; empty where nothing is."""
    m, n, k = config.BM + 9, config.BN + 7, 75 + 32 * config.SLICES
    rng = torch.Generator("cuda").manual_seed(1)

    def made(rows: int, cols: int, turned: bool, dtype: torch.dtype) -> torch.Tensor:
        rows, cols = (cols, rows) if turned else (rows, cols)
        each = 4 // dtype.itemsize
        whole = torch.full((rows, -(-cols // (4 * each)) * 4 * each + padding * each), math.nan, device="cuda", dtype=dtype)
        x = whole[:, :cols]
        x.copy_(torch.rand((rows, cols), generator=rng, device="cuda") - 0.5)
        return x.mT if turned else x

    a, b = made(m, k, layout[0] == "T", KINDS[kind]), made(k, n, layout[1] == "T", torch.float32)
    a[5, 50], b[3, 7] = math.inf, math.nan
    width = next(w for w in (4, 2, 1) if padding % w == 0)
    ld = [max(x.stride()) for x in (a, b)]
    desc = GemmDesc(m, n, k, 1, layout[0] == "T", layout[1] == "T", *ld, n + 5, align_a=width, align_b=width, type_a=NAMES[kind])
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


def at_once(session: Any, streams: int = 4, times: int = 40) -> str:
    """Return what is wrong with launches that split B themselves on several streams at once, more blocks than SMs have room for."""
    rng, todo = torch.Generator("cuda").manual_seed(2), []
    for n in range(streams):
        m, cols, k = 4096 - 300 * n, 256 + 40 * n, 1024 * (1 + n % 3)
        a, b = (torch.randn(shape, generator=rng, device="cuda") for shape in ((m, k), (cols, k)))
        launch = started(session, FAMILY, desc_of("f", "NT", m, cols, k), PresplitConfig())
        todo.append((torch.cuda.Stream(), launch, a, b, torch.full((m, cols), math.nan, device="cuda")))
    torch.cuda.synchronize()
    for _ in range(times):
        for stream, launch, a, b, out in todo:
            with torch.cuda.stream(stream):
                launch(a, b.mT, out)
    torch.cuda.synchronize()
    for _, _, a, b, out in todo:
        exact = a.double() @ b.mT.double()
        if not float((out.double() - exact).norm() / exact.norm()) < 1e-6:
            return f"{tuple(a.shape)} x {tuple(b.shape)}: wrong beside other streams"
    return ""


def cases() -> list[tuple[PresplitConfig, str, str, int]]:
    """Return what is held against float64: every block in each layout, some with other types, paddings and slices."""
    found = [(one, kind, layout, 0) for one in blocks() for layout in ("NN", "NT", "TN", "TT") for kind in "fb"]
    found += [(blocks()[0], "h", layout, 0) for layout in ("NN", "TN")]
    found += [(blocks()[0], kind, layout, padding) for kind in "fb" for layout in ("NN", "TN") for padding in (1, 2)]
    return found + [(one, "f", layout, 0) for one in blocks((2, 4)) for layout in ("NT", "TN")]


def measured(session: Any, shape: tuple[Any, ...]) -> dict[str, Any]:
    """Return times and errors of a shape's arms in turns."""
    kind, layout, m, n, k = shape
    rng = torch.Generator("cuda").manual_seed(m + n + k)
    stored_a, stored_b = ((k, m) if layout[0] == "T" else (m, k)), ((n, k) if layout[1] == "T" else (k, n))
    a = torch.randn(stored_a, generator=rng, device="cuda").to(KINDS[kind])
    b = torch.randn(stored_b, generator=rng, device="cuda")
    x, y = (a.mT if layout[0] == "T" else a), (b.mT if layout[1] == "T" else b)
    exact, out = x.double() @ y.double(), torch.empty((m, n), device="cuda")
    desc = desc_of(*shape)
    arms: dict[str, Callable[[], None]] = {}
    packed = SplitOperand(
        session, desc_of("f", *shape[1:]), b.data_ptr(), queue=torch.cuda.current_stream().cuda_stream, copied=True
    )
    scratch = torch.empty(FAMILY.workspace_bytes(session.device, desc, PresplitConfig()) // 4 + 64, device="cuda")
    for config in tried(desc):
        for name in ("one", "presplit")[layout[1] == "N" :]:
            own = PresplitLaunches(session, desc, config, is_one=name == "one").starter()

            def direct(run: Any = own) -> None:
                stream = torch.cuda.current_stream().cuda_stream
                run(a.data_ptr(), 0, b.data_ptr(), 0, out.data_ptr(), 0, 1.0, 0.0, stream, scratch.data_ptr())

            arms[f"{name} {config}"] = direct
        run = launches_of(session, desc, FAMILY, config).starter()

        def prepacked(run: Any = run) -> None:
            run(a.data_ptr(), 0, packed, 0, out.data_ptr(), 0, 1.0, 0.0, torch.cuda.current_stream().cuda_stream)

        arms[f"prepacked {config}"] = prepacked
    if kind == "f":
        (both,) = FP32X.candidates(session.device, desc)
        split = started(session, FP32X, desc, both)
        arms["fp32x"] = lambda: split(a, b, out)
    flying = started(session, INFLIGHT, desc, other(desc))
    arms["in flight"] = lambda: flying(a, b, out)
    for name, allowed in (("torch fp32", False), ("torch TF32", True)):

        def theirs(allowed: bool = allowed) -> None:
            torch.backends.cuda.matmul.allow_tf32 = allowed
            torch.mm(x.float(), y, out=out)
            torch.backends.cuda.matmul.allow_tf32 = False

        arms[name] = theirs
    row: dict[str, Any] = {"type_a": NAMES[kind], "layout": layout, "size": [m, n, k], "seconds": {}, "error": {}, "wrong": []}
    in_turns(row, arms, out, lambda name: exact, ROUNDS)
    return row


def line(row: dict[str, Any]) -> str:
    """Return the table's row of a shape, in µs."""
    times = {name: 1e6 * statistics.median(found) for name, found in row["seconds"].items()}

    def best(of: str) -> tuple[float, str]:
        return min(((t, name[len(of) + 1 :]) for name, t in times.items() if name.startswith(of)), default=(math.nan, ""))

    (whole, which), (packed, _), (one, also) = best("presplit"), best("prepacked"), best("one")
    others = " ".join(f"{times.get(name, math.nan):8.1f}" for name in ("fp32x", "in flight", "torch fp32", "torch TF32"))
    ours = max((e for name, e in row["error"].items() if name.startswith(("pre", "one"))), default=math.nan)
    name = f"{row['type_a'][0]} {row['layout']} {'×'.join(map(str, row['size']))}"
    wrong = f" WRONG {row['wrong']}" * bool(row["wrong"])
    theirs = row["error"]["torch fp32"]
    return f"{name:24} {one:8.1f} {whole:8.1f} {packed:8.1f} {others}  {ours:.1e} {theirs:.1e}  {also or which}{wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which no further shape is begun")
    parser.add_argument("--cases", type=int, default=0, help="check every nth small product and end, for a sanitizer")
    parser.add_argument("--jobs", type=int, default=16)
    options = parser.parse_args()
    start = time.perf_counter()
    session = session_at(Home("cuda", 0))
    checked = cases()[:: options.cases or 1]
    sources = []
    for config, kind, layout, padding in checked:
        width = {0: 4, 1: 1, 2: 2}[padding]
        ld = {"align_a": width, "align_b": width, "type_a": NAMES[kind]}
        sources.append(product_source(config, GemmDesc(64, 64, 64, 1, layout[0] == "T", layout[1] == "T", **ld)))
    for shape in () if options.cases else SHAPES:
        desc = desc_of(*shape)
        sources += [product_source(config, desc) for config in tried(desc)]
        sources.append(inflight_source(other(desc), desc.trans_a, desc.trans_b, *aligned(desc), **types(desc)))
        sources += [fp32x_source(config.variant) for config in FP32X.candidates(session.device, desc)]
    if not options.cases:  # a sanitizer follows no other processes
        compile_all(sources, options.jobs)
    bad = 0
    for case in checked:
        if reason := wrong(session, *case):
            bad += 1
            print(f"WRONG {case[0]} {case[1]} {case[2]} padding {case[3]}: {reason}", flush=True)
    print(f"{len(checked) - bad} of {len(checked)} small products are right, after {time.perf_counter() - start:.0f} s", flush=True)
    if reason := "" if options.cases else at_once(session):
        bad += 1
        print(reason)
    if bad or options.cases:
        return int(bad > 0)
    print("µs: best block with B split in the launch, by a pass, prepacked; both split; in flight; torch fp32, TF32; errors; which")
    what, rows = f"python benchmarks/presplit.py results/{session.device.slug}/{options.out.name}", []
    for shape in SHAPES:
        if time.perf_counter() - start > options.limit:
            print(f"no time is left for {shape} and what follows")
            break
        rows.append(measured(session, shape))
        print(line(rows[-1]), flush=True)
        results.write(options.out, results.record(what, environment(session), [], presplit=rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
