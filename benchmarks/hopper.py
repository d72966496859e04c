"""Everything of the hopper ladder to be seen on a GPU, in one run: helpers, then fp32x on hostile operands, then times.

    python benchmarks/hopper.py OUT [--only load,wgmma,multicast,bits,split,right,splits,time] [--sizes 512,1024] [--variants 0,3]

Each step (and each variant of ``right`` and ``time``) runs in a process of its own with a time limit, so that a kernel that hangs
takes nothing else with it. Prints a line a check, saying what was found where it is wrong, and one table of times; everything goes
into OUT/hopper-<step>.json as well. Under compute-sanitizer, one step at a time:

    compute-sanitizer --tool racecheck python benchmarks/hopper.py OUT --small --inside right --number 0

It keeps a loop of its own, for it times each launch of a plan alone, in a process that may hang.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import split_model as mirror
from toprung.backends.base import DYNAMIC_SHARED
from toprung.backends.cuda import CUDABuffer
from toprung.kernels.build import source_kernel
from toprung.kernels.hopper_fp32x.config import Variant
from toprung.kernels.hopper_fp32x.cost import COSTS, select_config
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.hopper_fp32x.sizes import LIMIT, width
from toprung.kernels.hopper_fp32x.sources import source, spread
from toprung.lab.ladders import hopper as ladder
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice

CHECKS = Path(ladder.__file__).with_name("checks.cu")
LIMIT_S = 75
SPIN = 1 << 21
VARIANTS = (*COSTS, Variant(BN=64, STAGES=8, INTERVAL=2), Variant(CONSUMERS=1, STAGES=8, GROUP=16))
SHAPES: tuple[dict[str, Any], ...] = (
    {"M": 128, "N": 128, "K": 64},
    {"M": 128, "N": 128, "K": 512},
    {"M": 1, "N": 1, "K": 65},
    {"M": 256, "N": 384, "K": 96},
    {"M": 129, "N": 65, "K": 65, "lda": 72, "ldb": 71, "ldc": 67},
    {"M": 1000, "N": 1000, "K": 1000, "alpha": 0.7, "beta": 1.3},
    {"M": 300, "N": 260, "K": 130, "trans": "NT"},
    {"M": 300, "N": 260, "K": 130, "trans": "TN", "lda": 301},
    {"M": 300, "N": 261, "K": 131, "trans": "TT", "beta": -1.0},
    {"M": 3000, "N": 2900, "K": 1025},
    {"M": 64, "N": 5000, "K": 4096},
    {"M": 70, "N": 90, "K": 20000},
    {"M": 150, "N": 70, "K": 65, "batch": 5},
    {"M": 33, "N": 31, "K": 64, "batch": 300, "trans": "TT"},
    {"M": 300, "N": 300, "K": 100, "alpha": 0.0, "beta": -1.0},
    {"M": 700, "N": 500, "K": 300, "limit": 340_000},
    {"M": 100, "N": 100, "K": 300, "batch": 7, "limit": 800_000},
)
"""``limit``: bytes of workspace, so that the call is cut into panels."""


def opened() -> Any:
    from toprung.backends.cuda import backend

    cuda = backend()
    found = cuda.devices()
    if not found:
        sys.exit("; ".join(cuda.advice()))
    return cuda.open(found[0])


def say(good: bool, what: str, detail: str = "") -> bool:
    print(f"{'ok   ' if good else 'WRONG'} {what}{': ' + detail if detail else ''}", flush=True)
    return good


def upload(session: Any, array: np.ndarray) -> Any:
    buffer = session.allocate(array.nbytes)
    session.upload(buffer, np.ascontiguousarray(array))
    return buffer


def check_kernel(session: Any, name: str, **defines: int) -> Any:
    return source_kernel(
        source(CHECKS, name, {"ARCH_SPECIFIC": 1, "SPIN_LIMIT": SPIN, "CHECK_N": 64, **defines, DYNAMIC_SHARED: 60_000}),
        session,
    )


def swizzled(tile: np.ndarray) -> np.ndarray:
    """Rows of 64 fp16 as the copy engine lays them with 128-byte swizzling: chunk c of row r at c ^ (r % 8)."""
    chunks = tile.reshape(tile.shape[0], 8, 8)
    out = np.empty_like(chunks)
    for r in range(tile.shape[0]):
        for c in range(8):
            out[r, c ^ (r % 8)] = chunks[r, c]
    return out.reshape(tile.shape)


def found_instead(got: np.ndarray, data: np.ndarray) -> str:
    """Return the places in the source of the first chunks of 8 that came out wrong."""
    where = {tuple(row): divmod(8 * i, data.shape[1]) for i, row in enumerate(data.reshape(-1, 8).tolist())}
    lines = [
        f"({i // 8},{i % 8})<-{where.get(tuple(chunk), chunk[:3])}" for i, chunk in enumerate(got.reshape(-1, 8).tolist()[:20])
    ]
    return "chunk (row,place) <- source (row,col): " + " ".join(lines)


def step_load(session: Any, report: dict[str, Any]) -> bool:
    """The copy engine: a box in the middle of a matrix, one across its edge, and the swizzle."""
    rows, cols = 300, 192
    data = (np.arange(rows * cols) % 2039).astype(np.float16).reshape(rows, cols)
    buffer, out = upload(session, data), session.allocate(16384)
    kernel = check_kernel(session, "check_load")
    descriptor = session.tensor_map(buffer, rows, cols, (128, 64))
    good = True
    for x, y in ((0, 0), (64, 128), (128, 250)):
        session.bind(kernel, (1,), (128,), (descriptor, np.int32(x), np.int32(y), out))()
        got = np.empty((128, 64), np.float16)
        session.download(out, got)
        padded = np.zeros((128, 64), np.float16)
        part = data[y : y + 128, x : x + 64]
        padded[: part.shape[0]] = part
        same = np.array_equal(got, swizzled(padded))
        good &= say(same, f"load box at x={x} y={y}", "" if same else found_instead(got, data))
    return good


def step_wgmma(session: Any, report: dict[str, Any]) -> bool:
    """One matrix instruction of each width, at each of the four places along a row of 64 of K."""
    rng, good = np.random.default_rng(0), True
    for n in (64, 96, 128, 192, 256):
        a, b = rng.integers(-8, 9, (64, 64)).astype(np.float16), rng.integers(-8, 9, (n, 64)).astype(np.float16)
        kernel, out = check_kernel(session, "check_wgmma", CHECK_N=n), session.allocate(4 * 64 * n)
        buffers = upload(session, a), upload(session, b)
        for step in range(4):
            session.bind(kernel, (1,), (128,), (*buffers, np.int32(step), out))()
            got = np.empty((64, n), np.float32)
            session.download(out, got)
            k = slice(16 * step, 16 * step + 16)
            want = a[:, k].astype(np.float32) @ b[:, k].astype(np.float32).T
            detail = ""
            if not np.array_equal(got, want):
                rows, cols = np.nonzero(got != want)
                places = [
                    f"C{(int(r), int(c))} is {got[r, c]:g}, not {want[r, c]:g}; "
                    f"that is C{[tuple(map(int, p)) for p in np.argwhere(want == got[r, c])[:4]]}"
                    for r, c in list(zip(rows, cols, strict=True))[:5]
                ]
                others = [
                    s
                    for s in range(4)
                    if np.array_equal(
                        got, a[:, 16 * s : 16 * s + 16].astype(np.float32) @ b[:, 16 * s : 16 * s + 16].astype(np.float32).T
                    )
                ]
                detail = (
                    f"{rows.size} of {got.size} wrong (rows {sorted(set(rows.tolist()))[:8]}, "
                    f"cols {sorted(set(cols.tolist()))[:8]}); right for step {others}; " + "; ".join(places)
                )
            good &= say(not detail, f"wgmma m64n{n}k16 step {step}", detail)
    return good


def step_multicast(session: Any, report: dict[str, Any]) -> bool:
    """Two blocks of a cluster fetch a half each for both."""
    data = (np.arange(128 * 64) % 2039).astype(np.float16).reshape(128, 64)
    buffer, out = upload(session, data), session.allocate(2 * 16384)
    descriptor = session.tensor_map(buffer, 128, 64, (64, 64))
    session.bind(check_kernel(session, "check_multicast"), (2,), (128,), (descriptor, out))()
    got = np.empty((2, 128, 64), np.float16)
    session.download(out, got)
    good = True
    for block in range(2):
        same = np.array_equal(got[block], swizzled(data))
        good &= say(same, f"multicast into block {block}", "" if same else found_instead(got[block], data))
    return good


def step_bits(session: Any, report: dict[str, Any]) -> bool:
    """Show how the unit adds: small products beside a large one and beside a large accumulator; says what is kept, judges nothing.

    Element (0, j): accumulator 1 (or a product 1·1) plus a product 2^-i, i = j; compared with the emulation in toprung.split.
    """
    kernel, out = check_kernel(session, "check_bits"), session.allocate(4 * 64 * 64)
    found: dict[str, Any] = {}
    for name, start_value, factors in (
        ("accumulator 1 + 2^-j", 1.0, (0.0, 1.0)),
        ("accumulator 1 + 3 * 2^-j", 1.0, (0.0, 3.0)),
        ("product 1 + 2^-j", 0.0, (1.0, 1.0)),
        ("product 1 + 8 products of 2^-j", 0.0, (1.0, 1.0)),
        ("accumulator -1 + 2^-j", -1.0, (0.0, 1.0)),
        ("accumulator 2^-j + product 1", None, (1.0, 0.0)),
    ):
        a, b = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
        many = 8 if "8" in name else 1
        a[0, 0] = factors[0]
        b[:, 0] = 1.0
        j = np.arange(64)
        for i in range(many):  # 2^-j as a product of two powers of two that fp16 has
            a[0, 1 + i] = 2.0**-12 * factors[1]
            b[:, 1 + i] = np.ldexp(1.0, np.clip(12 - j, -24, 12)).astype(np.float16)
        start = np.zeros((64, 64), np.float32)
        start[0] = np.ldexp(1.0, -j) if start_value is None else start_value
        session.bind(kernel, (1,), (128,), (upload(session, a), upload(session, b), upload(session, start), out))()
        got = np.empty((64, 64), np.float32)
        session.download(out, got)
        want = mirror.matrix_unit(start.astype(np.float64), a[:, :16].astype(np.float64), b[:, :16].astype(np.float64).T)
        base = -1.0 if start_value == -1.0 else 1.0
        kept = np.nonzero(got[0, :36] != base)[0]
        differs = np.nonzero(got[0, :36] != want[0, :36])[0]
        found[name] = {
            "kept_to": int(kept.max()),
            "model_differs_at": differs.tolist(),
            "got_23_30": [float(v - base) * 2**23 for v in got[0, 20:30]],
        }
        say(
            not differs.size,
            f"bits {name}",
            f"last j that changes the sum {int(kept.max())}; model differs at j={differs.tolist()}; "
            f"(sum - base) * 2^23 for j=20..29: {[float(v - base) * 2**23 for v in got[0, 20:30]]}",
        )
    report["bits"] = found
    return True


def downloaded(session: Any, address: int, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    array = np.empty(shape, kind)
    session.download(CUDABuffer(address, array.nbytes), array)
    return array


SPLITS: tuple[tuple[dict[str, Any], tuple[int, int] | None], ...] = (
    ({"M": 70, "N": 100, "K": 203}, None),
    ({"M": 70, "N": 100, "K": 203, "trans": "TT"}, None),
    ({"M": 70, "N": 100, "K": 203, "lda": 205, "ldb": 103}, None),
    ({"M": 70, "N": 100, "K": 203, "lda": 208, "ldb": 204, "trans": "NT"}, None),
    ({"M": 70, "N": 100, "K": 64, "batch": 3}, None),
    *(({"M": 40, "N": 40, "K": 2500, "trans": "TN"}, how) for how in ((1, 32), (2, 32), (4, 32), (8, 32), (8, 64))),
    ({"M": 40, "N": 40, "K": 20001, "trans": "NN"}, None),
    ({"M": 2100, "N": 40, "K": 1100, "trans": "NN"}, None),
)
"""Layouts, and blocks of a cluster and elements a thread holds where they are not chosen."""


def step_split(session: Any, report: dict[str, Any]) -> bool:
    """The splitting pass against its mirror, bit for bit, along and across memory."""
    good = True
    for name in ("uniform", "phi4", "T2", "subnormal", "zeros", "huge-row"):
        for shape, how in SPLITS:
            problem = Gemm(**shape)
            operands = hostile(problem, name)
            placed: Any = OnDevice(operands, session)
            plan = Fp32xLaunches(session, problem.desc, Variant(), splitting=how)
            (step,) = plan.steps()
            step.split_only(placed.parts["A"].pointer, placed.parts["B"].pointer, None)
            session.synchronize()
            left, right, _ = problem.stacks(operands.matrices)
            terms_a, info_a, terms_b, info_b = step.addresses
            for side, matrices, terms, info in (("A", left, terms_a, info_a), ("B", right.transpose(0, 2, 1), terms_b, info_b)):
                x = np.ascontiguousarray(matrices).reshape(-1, problem.K)
                rows, wide = x.shape[0], width(problem.K)
                got = downloaded(session, terms, (rows, wide // 64, 2, 32), np.float16)
                info_got = downloaded(session, info, (rows, 2), np.uint32)
                e, lost, thin = mirror.statistics(x)
                want = np.zeros((rows, wide // 2, 2), np.float16)
                want[:, : problem.K, 0], want[:, : problem.K, 1] = mirror.split(x, e)
                want = want.reshape(rows, -1, 32, 2).transpose(0, 1, 3, 2)
                info_want = np.stack(
                    [(e - mirror.TOP).astype(np.int32).view(np.uint32), (thin + ((lost > 0) * (1 << 30))).astype(np.uint32)], axis=1
                )
                wrong, detail = np.argwhere(got != want), ""  # -0 and 0 are the same here
                if wrong.size:
                    w = tuple(int(v) for v in wrong[0])
                    detail += f"{len(wrong)} terms, first (row,chunk,hi/lo,k) {w}: {got[w]} not {want[w]}; "
                if (differs := np.argwhere(info_got != info_want)).size:
                    r = int(differs[0, 0])
                    detail += f"{len(differs)} of info, first row {r}: {info_got[r].tolist()}, not {info_want[r].tolist()}"
                good &= say(not detail, f"split {side} of {shape} {name} {how or ''}", detail) if detail else True
    return say(good, f"split, bit for bit on 6 distributions in {len(SPLITS)} layouts")


def verdict_of(session: Any, problem: Gemm, distribution: str, variant: Variant, limit: int = LIMIT) -> tuple[Any, int]:
    operands = hostile(problem, distribution)
    placed = OnDevice(operands, session)
    oracle = Oracle(operands)
    plan = Fp32xLaunches(session, problem.desc, variant, limit, SPIN_LIMIT=SPIN)
    a, b, c = (placed.parts[n] for n in "ABC")

    def bits(second: Any) -> np.ndarray:
        placed.reset()
        plan.run(a, 0, second, 0, c, 0, problem.alpha, problem.beta)
        return placed.fetch().view(np.uint32)

    first = bits(b)
    count, problems = plan.escalated(), []
    if not np.array_equal(first, bits(b)):
        problems.append("a second run gave other bits")
    if problem.batch == 1 and limit == LIMIT:
        prepared = plan.prepare(b)
        session.synchronize()
        session.upload(b, np.full(b.nbytes // 4, np.nan, np.float32))  # the source changes
        if not np.array_equal(first, bits(prepared)):
            problems.append("a prepared B gave other bits")
    verdict = oracle.verify(first.view(np.float32), "fp32x")
    if problems:
        verdict = replace(verdict, right=False, problems=(*problems, *verdict.problems))
    return verdict, count


def step_right(session: Any, report: dict[str, Any], number: int) -> bool:
    """A variant on hostile shapes, twice each."""
    variant, good = VARIANTS[number], True
    for shape in SHAPES:
        problem = Gemm(**{k: v for k, v in shape.items() if k != "limit"})
        exact = float(problem.alpha).is_integer() and float(problem.beta).is_integer()
        for name in ("integers" if exact else "normal", "uniform", "phi4"):
            verdict, count = verdict_of(session, problem, name, variant, shape.get("limit", LIMIT))
            report.setdefault("right", []).append(
                {
                    "variant": str(variant),
                    "problem": problem.describe(),
                    "distribution": name,
                    "granules": count,
                    **verdict.describe(),
                }
            )
            if not verdict.right:
                good = say(False, f"{variant} {problem} {name}", f"granules by guard {count}; " + "; ".join(verdict.problems)[:600])
    return say(good, f"right {number}: {variant} on {len(SHAPES)} shapes")


def timed(session: Any, run: Callable[[], None], flops: float, samples: int = 5) -> dict[str, float]:
    """TFLOP/s of calls in a row: the median of a few short bursts."""
    for _ in range(3):
        run()
    session.synchronize()
    begin = time.perf_counter()
    run()
    session.synchronize()
    calls = max(3, min(200, int(0.03 / max(time.perf_counter() - begin, 1e-6))))
    seconds = []
    for _ in range(samples):
        start = session.mark()
        for _ in range(calls):
            run()
        seconds.append(session.seconds(start, session.mark()) / calls)
    median = float(np.median(seconds))
    return {
        "tflops": flops / median / 1e12,
        "us": median * 1e6,
        "low": flops / max(seconds) / 1e12,
        "high": flops / min(seconds) / 1e12,
    }


def operand_sets(session: Any, n: int, sets: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(sets):
        one = {}
        for name in "AB":
            one[name] = upload(session, rng.random((n, n), np.float32) * 2 - 1)
        one["C"] = session.allocate(4 * n * n)
        found.append(one)
    return found


def ours(session: Any, n: int, number: int, sets: list[dict[str, Any]], flops: float) -> dict[str, Any]:
    """Both launches together over the operand sets in turn, then each alone, then what the host needs for a call."""
    desc = Gemm(n, n, n).desc
    variant = VARIANTS[number] if number < len(VARIANTS) else select_config(desc, session.device.compute_units).variant
    plan = Fp32xLaunches(session, desc, variant, overlap=number != len(VARIANTS) + 1)
    addresses = [tuple(one[m].pointer for m in "ABC") for one in sets]
    turn = 0

    def run() -> None:
        nonlocal turn
        turn += 1
        a, b, c = addresses[turn % len(addresses)]
        plan.run(a, 0, b, 0, c, 0, 1.0, 0.0)

    row: dict[str, Any] = {"name": f"{variant}{'' if number < len(VARIANTS) else ' chosen'}", **timed(session, run, flops)}
    (step,) = plan.steps()
    a, b, c = addresses[0]
    alone: dict[str, Callable[[], None]] = {
        "split": functools.partial(step.split_only, a, b, None),
        "multiply": functools.partial(step.multiply_only, a, b, c, 1.0, 0.0, None),
    }
    row["parts_us"] = {k: timed(session, f, flops)["us"] for k, f in alone.items()}
    row["multiply_tflops"] = flops / row["parts_us"]["multiply"] / 1e6
    begin = time.perf_counter()
    for _ in range(100):
        run()
    row["host_us"] = (time.perf_counter() - begin) * 1e4
    session.synchronize()
    if n == 2048:
        row["frobenius"] = sampled_error(session, n, sets[0])
    return row


def step_time(session: Any, report: dict[str, Any], number: int, sizes: list[int]) -> bool:
    """Bursts; number -1 is cuBLAS fp32, the two after the last variant the tile that is chosen, with and without overlap."""
    for n in sizes:
        sets, problem, flops = operand_sets(session, n, 2 if n < 16384 else 1), Gemm(n, n, n), 2.0 * n**3
        row: dict[str, Any] = {"n": n, "variant": number}
        if number < 0:
            row |= {"name": "cuBLAS fp32", **vendor_time(session, problem, sets, flops)}
        else:
            row |= ours(session, n, number, sets, flops)
        row["clock_mhz"] = session.clock_mhz()
        report.setdefault("time", []).append(row)
        parts = " ".join(f"{k} {v:.1f}" for k, v in row.get("parts_us", {}).items())
        print(
            f"{row['name']:28} {n:6} {row['tflops']:7.1f} TFLOP/s [{row['low']:.1f} {row['high']:.1f}] {row['us']:9.1f} us  {parts}"
            f"  product alone {row.get('multiply_tflops', 0):.1f}  host {row.get('host_us', 0):.1f} us  {row['clock_mhz']} MHz"
            f" {row.get('frobenius', '')}",
            flush=True,
        )
        del sets
    return True


def step_splits(session: Any, report: dict[str, Any], sizes: list[int]) -> bool:
    """The splitting pass alone, in every layout, with each number of blocks that share rows whose K runs across memory."""
    for n in sizes:
        (one,) = operand_sets(session, n, 1)
        a, b = (one[m].pointer for m in "AB")
        for trans in ("NT", "NN", "TT"):
            line = []
            for how in ((1, 32), (2, 32), (4, 32), (8, 32), (4, 64), (8, 64)) if trans != "NT" else ((1, 32), (1, 64)):
                plan = Fp32xLaunches(session, Gemm(n, n, n, trans=trans).desc, splitting=how)
                (step,) = plan.steps()
                us = timed(session, functools.partial(step.split_only, a, b, None), 1.0)["us"]
                rate = 16 * n * n / us / 1e6
                chosen = "*" if how == spread(n, trans != "NT") else ""
                line.append(f"{how[0]}x{how[1]}{chosen} {us:.1f} us {rate:.2f} TB/s")
                report.setdefault("splits", []).append({"n": n, "trans": trans, "how": how, "us": us, "tb_s": rate})
            print(f"split {n:6} {trans}  " + "   ".join(line), flush=True)
        del one
    return True


def sampled_error(session: Any, n: int, buffers: dict[str, Any]) -> float:
    a, b, c = (np.empty((n, n), np.float32) for _ in "ABC")
    for name, array in (("A", a), ("B", b), ("C", c)):
        session.download(buffers[name], array)
    rows = np.linspace(0, n - 1, 64).astype(int)
    want = a[rows].astype(np.float64) @ b.astype(np.float64)
    return float(np.linalg.norm(c[rows] - want) / np.linalg.norm(want))


def vendor_time(session: Any, problem: Gemm, sets: list[dict[str, Any]], flops: float) -> dict[str, float]:
    import ctypes

    from toprung.lab.baselines import _cublas

    library, handle = _cublas._library(), _cublas._handle(int(session.queue))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    n, turn = problem.M, 0

    def call() -> None:
        nonlocal turn
        turn += 1
        s = sets[turn % len(sets)]
        _cublas._check(
            library.cublasGemmEx(
                handle, 0, 0, n, n, n, ctypes.byref(one), s["B"].pointer, 0, n, s["A"].pointer, 0, n, ctypes.byref(zero),
                s["C"].pointer, 0, n, _cublas.COMPUTE_32F, _cublas.DEFAULT_ALGORITHM,
            ),
            "cublasGemmEx",
        )  # fmt: skip

    return timed(session, call, flops)


STEPS: dict[str, Callable[..., bool]] = {
    "load": step_load, "wgmma": step_wgmma, "multicast": step_multicast, "bits": step_bits, "split": step_split,
}  # fmt: skip


def inside(out: Path, step: str, number: int | None, sizes: list[int]) -> int:
    """One step, in the process made for it."""
    session, report = opened(), {}  # type: ignore[var-annotated]
    try:
        if step == "right":
            good = step_right(session, report, number or 0)
        elif step == "splits":
            good = step_splits(session, report, sizes)
        elif step == "time":
            good = step_time(session, report, number or 0, sizes)
        else:
            good = STEPS[step](session, report)
    except Exception as error:
        good = say(False, f"{step} {'' if number is None else number}", f"{type(error).__name__}: {str(error)[-700:]}")
    report["device"] = str(session.device)
    (out / f"hopper-{step}{'' if number is None else number}.json").write_text(json.dumps(report, indent=1, default=str))
    return 0 if good else 1


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--only", default="load,wgmma,multicast,bits,split,right,splits,time")
    arguments.add_argument("--sizes", default="512,1024,2048,4096,8192,16384")
    arguments.add_argument("--variants", default=",".join(map(str, range(len(VARIANTS)))))
    arguments.add_argument("--small", action="store_true", help="only shapes that are quick under compute-sanitizer")
    arguments.add_argument("--inside", default="")
    arguments.add_argument("--number", type=int)
    chosen = arguments.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    sizes = [int(n) for n in chosen.sizes.split(",")]
    if chosen.small:
        global SPIN, SHAPES, SPLITS
        SPIN = 0  # there, waiting is slow
        SHAPES = tuple(s for s in SHAPES if s["M"] * s["N"] * s["K"] * s.get("batch", 1) < 1 << 25)
        SPLITS = tuple(s for s in SPLITS if s[0]["K"] < 3000)
    if chosen.inside:
        return inside(chosen.out, chosen.inside, chosen.number, sizes)
    numbers = [int(v) for v in chosen.variants.split(",")]
    good, right = True, set(numbers)
    for step in chosen.only.split(","):
        runs: list[int | None] = [None]
        if step == "right":
            runs = [*numbers]
        elif step == "time":
            runs = [-1, *(v for v in numbers if v in right), len(VARIANTS), len(VARIANTS) + 1]
        for number in runs:
            words = [sys.executable, __file__, str(chosen.out), "--inside", step, "--sizes", chosen.sizes]
            words += [] if number is None else ["--number", str(number)]
            words += ["--small"] if chosen.small else []
            try:
                code = subprocess.run(words, timeout=LIMIT_S, check=False).returncode
            except subprocess.TimeoutExpired:
                code = 1
                say(False, f"{step} {'' if number is None else number}", f"killed after {LIMIT_S} s")
            good &= code == 0
            if code and step == "right" and number is not None:
                right.discard(number)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
