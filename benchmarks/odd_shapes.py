"""Time odd shapes: cuBLAS in fp32, what toprung takes by itself, and the candidates of its own that it passed over.

    python benchmarks/odd_shapes.py results/nvidia-h200/odd-shapes.json [--shapes 413x732x61981,100*99x101x103,TT:1405x399x71663]
    python benchmarks/odd_shapes.py results/nvidia-h200/rows.json --precision fp32x --shapes 2452x43x2648+0+3,126*154x56x260

``+0+3``: stored rows of A and B are so many elements longer than they need be; NaN stands there. ``--data relu``: of A, what is
negative is 0; ``wide``: besides, all are multiplied by e^(2N), N normal numbers; ``softmax:4``: A's rows in memory are the
softmax of normal numbers with that standard deviation; ``gradient:4``: B's are what such a softmax passes back of random gradients.

Each arm is held against float64 first. Then arms take turns as CUDA graphs, which leave out what the host does. The table has µs
of a product, medians, cuBLAS's time over that of each arm, and Frobenius errors over cuBLAS's: the default may be slower than the
best candidate, then the selection is at fault, or both than cuBLAS, then the kernel is.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import toprung
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.backends.base import Session
from toprung.device import Device
from toprung.dispatch.ranking import ranked
from toprung.dispatch.selection import Candidate
from toprung.execute.executable import Executable
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_sgemm import cost
from toprung.kernels.hopper_sgemm.config import VARIANTS
from toprung.kernels.registry import family
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.tune.compiler import compile_one, cores

SHAPES = (
    "1085x2219x2438,413x732x61981,1405x399x71663,423x2144x55458,1x4096x4096,100*99x101x103,37x4096x4096,4096x37x4096,2049x2049x2049,"
    "1023x1025x1027,999x4001x333,8191x129x1023,3520x11229x59,4096x100x4096,600x600x3000,130x130x100000"
)
FIRST, VARIED = 4, 2
"""Candidates of the ranking, and variants of ``hopper_sgemm`` with and without copies, that are timed."""
ROUNDS, BURST, LIMIT = 7, 3e-3, 5e-6
"""Samples of each arm; seconds of a sample; the largest error, in norms."""

Shape = tuple[int, int, int, int, str, int, int]
Arm = Callable[[], Any]


def parsed(text: str) -> list[Shape]:
    """Return batch, M, N, K, layout and what rows of A and B are longer, of each product."""
    found = []
    for one in text.split(","):
        trans, _, rest = one.rpartition(":")
        rest, *longer = rest.split("+")
        batch, _, sizes = rest.rpartition("*")
        m, n, k = map(int, sizes.split("x"))
        found.append((int(batch or 1), m, n, k, trans or "NN", *map(int, longer or (0, 0))))
    return found


def stored_sizes(shape: Shape) -> list[tuple[int, int]]:
    """Return rows of A and of B in memory, and elements from one to the next."""
    _, m, n, k, trans, *longer = shape
    turned = (size[::-1] if t == "T" else size for t, size in zip(trans, ((m, k), (k, n)), strict=True))
    return [(rows, cols + more) for (rows, cols), more in zip(turned, longer, strict=True)]


def desc_of(shape: Shape) -> GemmDesc:
    batch, m, n, k, trans, *_ = shape
    (rows_a, lda), (rows_b, ldb) = stored_sizes(shape)
    strides = (rows_a * lda, rows_b * ldb, m * n) if batch > 1 else (0, 0, 0)
    return GemmDesc(m, n, k, batch, trans[0] == "T", trans[1] == "T", lda, ldb, 0, *strides, 4, 4, 4)


def candidates(device: Device, desc: GemmDesc, precision: str) -> list[Candidate]:
    """Return the first of the ranking; in fp32 also the variants of Hopper's kernel that are predicted fastest, weighed or not."""
    found = [p.candidate for p in ranked(device, desc, precision)[:FIRST] if p.seconds < math.inf]
    sgemm = family("hopper_sgemm")
    if precision == sgemm.precision and not sgemm.supports(device, desc):
        fit = sorted((v for v in VARIANTS if not cost.unfit(desc, v)), key=lambda v: cost.predicted(desc, device.compute_units, v))
        found += [Candidate(sgemm, v) for copy in (0, 1) for v in [v for v in fit if v.COPY == copy][:VARIED]]
    return list(dict.fromkeys(found))


def compile_all(session: Session, asked: list[tuple[GemmDesc, list[Candidate]]]) -> None:
    """Compile everything on all cores into the build cache."""
    device, fingerprint = session.device, session.fingerprint()
    wanted = {str(s): s for desc, some in asked for one in some for s in one.family.sources(device, desc, one.config)}
    with ProcessPoolExecutor(cores(), get_context("spawn")) as pool:
        todo: list[Future[str]] = [pool.submit(compile_one, s, device.arch, fingerprint) for s in wanted.values()]
        print(f"{len(todo)} sources, {sum(bool(f.result()) for f in todo)} not compiled", flush=True)


def captured(run: Callable[[], Any], calls: int, side: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Return a graph of so many calls; each library has been called on the stream before, and has its handles and memory."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(calls):
            run()
    return graph


def seconds(run: Callable[[], Any]) -> float:
    """Return the device's seconds of what is put into the queue."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def own_run(session: Session, desc: GemmDesc, candidate: Candidate, tensors: tuple[Any, Any, Any]) -> Arm:
    """Return what runs a candidate."""
    made: Any = Executable.of(session, desc, candidate)
    lent = torch.empty(max(made.lent_bytes, 4), dtype=torch.uint8, device="cuda")
    a, b, c = (x.data_ptr() for x in tensors)
    return lambda: made.run(a, 0, b, 0, c, 0, 1.0, 0.0, torch.cuda.current_stream().cuda_stream, None, lent.data_ptr())


def measured(session: Session, shape: Shape, desc: GemmDesc, some: list[Candidate], precision: str, data: str) -> dict[str, Any]:
    """Return errors and samples of every arm; an arm that is wrong has no samples."""
    batch, m, n, k, trans, *longer = shape
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    a, b = (torch.rand(batch, *size, device="cuda", generator=generator) - 0.5 for size in stored_sizes(shape))
    kind, _, deviation = data.partition(":")
    if kind == "wide":
        a, b = (x * torch.exp(2 * torch.randn(x.shape, device="cuda", generator=generator)) for x in (a, b))
    if kind in ("relu", "wide"):
        a.relu_()
    if kind in ("softmax", "gradient"):
        like = a if kind == "softmax" else b
        weights = (float(deviation) * torch.randn(like.shape, device="cuda", generator=generator)).softmax(2)
        if kind == "gradient":
            given = torch.randn(like.shape, device="cuda", generator=generator)
            weights *= given - (weights * given).sum(2, keepdim=True)
        like.copy_(weights)
    for one, more in zip((a, b), longer, strict=True):
        one[:, :, one.shape[2] - more :] = math.nan
    out = torch.empty(batch, m, n, device="cuda")
    rows = (one[:, :, : one.shape[2] - more] for one, more in zip((a, b), longer, strict=True))
    x, y = (one.mT if t == "T" else one for t, one in zip(trans, rows, strict=True))
    x, y, z = (x, y, out) if batch > 1 else (x[0], y[0], out[0])
    exact = x.double() @ y.double()
    theirs = torch.bmm if batch > 1 else torch.mm
    arms: dict[str, Callable[[], Arm]] = {
        "cublas": lambda: lambda: theirs(x, y, out=z),
        "default": lambda: lambda: toprung.matmul(x, y, z, precision=precision, own=True),
    }
    for one in some:
        config: Any = one.config
        name = f"hopper_sgemm {config.text}" if one.kernel == "hopper_sgemm" else str(one)
        arms[name] = lambda one=one: own_run(session, desc, one, (a, b, out))  # type: ignore[misc]
    row: dict[str, Any] = {"shape": shape, "error": {}, "wrong": [], "seconds": {}, "selected": ""}
    graphs, calls, side = {}, {}, torch.cuda.Stream()
    kept = []  # what a graph launches must stay: executables own counters and maps of tensors
    for name, make in arms.items():
        print(f"{shape} {name}", flush=True)  # whoever ends the context is the last one named
        run = make()
        out.fill_(math.nan)
        run()
        torch.cuda.synchronize()
        row["error"][name] = error = float((z.double() - exact).norm() / exact.norm())
        if name == "default" and (left := toprung.last_receipt()) is not None:
            row["selected"] = "; ".join(left.kernels)
        if not error < LIMIT:
            row["wrong"].append(name)
            continue
        seconds(run)
        calls[name] = max(1, min(200, round(BURST / max(seconds(run), 1e-6))))
        graph = captured(run, calls[name], side)
        out.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        if float((z.double() - exact).norm() / exact.norm()) < LIMIT:
            graphs[name] = graph
            kept.append(run)
        else:
            row["wrong"].append(f"{name}, graph")
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            samples[name].append(seconds(graph.replay) / calls[name])
    row["seconds"] = samples
    return row


def table(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        batch, m, n, k, trans, *longer = row["shape"]
        found = {name: 1e6 * statistics.median(samples) for name, samples in row["seconds"].items()}
        sizes = f"{m}x{n}x{k}" + "".join(f"+{more}" for more in longer) * any(longer)
        theirs, error = found.get("cublas", math.nan), row["error"]["cublas"]
        print(
            f"{f'{trans}:' * (trans != 'NN')}{f'{batch}*' * (batch > 1)}{sizes}: cuBLAS {theirs:.1f} µs, error {error:.1e}"
            + f" WRONG {row['wrong']}" * bool(row["wrong"])
        )
        for name in sorted(found, key=found.__getitem__):
            kernel = f": {row['selected']}" if name == "default" else ""
            print(f"   {found[name]:9.1f} {theirs / found[name]:6.3f}  error {row['error'][name] / error:5.2f}  {name}{kernel}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "fp32x"))
    parser.add_argument("--data", default="uniform", help="uniform, relu, wide, softmax:X or gradient:X")
    options = parser.parse_args()
    if not re.fullmatch(r"uniform|relu|wide|(softmax|gradient):\d+(\.\d+)?", options.data):
        parser.error(f"--data is uniform, relu, wide, softmax:X or gradient:X with a number X, not {options.data}")
    torch.backends.cuda.matmul.allow_tf32 = False
    begin = time.monotonic()
    session = session_at(Home("cuda", 0))
    asked = [(desc, candidates(session.device, desc, options.precision)) for desc in map(desc_of, parsed(options.shapes))]
    compile_all(session, asked)
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    what = f"python benchmarks/odd_shapes.py results/{session.device.slug}/{options.out.name}"
    what += f" --precision {options.precision} --data {options.data} --shapes {options.shapes}"
    for shape, (desc, some) in zip(parsed(options.shapes), asked, strict=True):
        rows.append(measured(session, shape, desc, some, options.precision, options.data))
        results.write(options.out, results.record(what, environment(session), [], odd_shapes=rows))
    print(f"measured after {time.monotonic() - begin:.0f} s", flush=True)
    table(rows)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
