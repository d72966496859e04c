"""Compare a level of Strassen with fp32x and cuBLAS fp32: errors by distribution, speed and energy.

    python benchmarks/strassen.py results/nvidia-h200/strassen.json [--parts right,errors,steps,time] [--sizes 8192,12288,16384]

``right``    odd sizes, layouts, alpha and beta, Inf and NaN, and ``matmul``, against float64; ends the run where it fails
``errors``   by input distribution at 8192: Frobenius, the largest over K · max|A| · max|B|, the largest over |A|·|B|
``steps``    each launch alone, after a pause
``time``     two rounds of 1.5 s of the same call and then a sample of 0.7 s, with joules and the clock

About 80 seconds in all, the last part 20 a size. Two forms of the seven products take part; the library has Strassen's.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import toprung
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import candidates
from toprung.kernels.hopper_fp32x.family import FP32X
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.hopper_fp32x.strassen import STRASSEN
from toprung.kernels.hopper_fp32x.strassen import launches as strassen
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.power import Meter
from toprung.lab.routines.gemm_strassen import WINOGRAD

SIZES = (8192, 12288, 16384)
ROUNDS, BUSY, SAMPLE = 2, 1.5, 0.7
ERRORS_AT, ROWS = 8192, 256
U = 2.0**-24

DISTRIBUTIONS: dict[str, Callable[[int, int, int], torch.Tensor]] = {
    "uniform": lambda rows, cols, side: 2 * torch.rand(rows, cols, device="cuda") - 1,
    "normal": lambda rows, cols, side: _normal(rows, cols),
    "positive": lambda rows, cols, side: torch.rand(rows, cols, device="cuda"),
    "lognormal": lambda rows, cols, side: (4 * torch.rand(rows, cols, device="cuda") - 2) * torch.exp(_normal(rows, cols)),
    "wide rows": lambda rows, cols, side: (2 * torch.rand(rows, cols, device="cuda") - 1) * _ranges(rows, cols, side),
}  # fmt: skip
"""Values of an operand with ``rows`` and ``cols``; ``side`` 0 is A, 1 is B."""

RIGHT = (
    ("NN", 1030, 2050, 1500, 1.0, 0.0), ("TN", 1001, 777, 1333, 0.5, 2.0), ("NT", 1024, 1024, 1024, 1.0, 1.0),
    ("TT", 513, 2047, 4099, -1.5, 0.25), ("NN", 5000, 4100, 6100, 1.0, 0.5),
    ("NN", 8200, 8193, 16384, 1.0, 0.0), ("TT", 8200, 8193, 16384, 1.0, 0.0),
)  # fmt: skip
"""Layout, M, N, K, α and β."""


def _normal(rows: int, cols: int) -> torch.Tensor:
    return torch.randn(rows, cols, device="cuda")


def _ranges(rows: int, cols: int, side: int) -> torch.Tensor:
    """Powers of two from 2⁻¹⁰ to 2¹⁰, one for each row of A or each column of B."""
    ranges = torch.randint(-10, 11, (rows if side == 0 else cols,), device="cuda").float().exp2()
    return ranges[:, None] if side == 0 else ranges[None, :]


def described(layout: str, m: int, n: int, k: int, skip: int = 0) -> GemmDesc:
    """Return the descriptor of a product whose rows are ``skip`` longer than they must be."""
    a, b = layout[0] == "T", layout[1] == "T"
    lda, ldb, ldc = ((m if a else k) + skip, (k if b else n) + skip, n + skip)
    align = 4 if not (lda % 4 or ldb % 4 or ldc % 4) else 1
    return GemmDesc(m, n, k, 1, a, b, lda, ldb, ldc, align_a=align, align_b=align, align_c=align)


def queue() -> int:
    """Return PyTorch's stream."""
    return int(torch.cuda.current_stream().cuda_stream)


def wrong(session: Any, layout: str, m: int, n: int, k: int, alpha: float, beta: float) -> str:
    """Return what is wrong with both forms on a product with padded rows, one NaN and one Inf, as a sentence."""
    desc = described(layout, m, n, k, 3 if m % 2 else 4)
    torch.manual_seed(m)
    a = torch.full((k if desc.trans_a else m, desc.lda), math.nan, device="cuda")
    b = torch.full((n if desc.trans_b else k, desc.ldb), math.nan, device="cuda")
    x, y = a[:, : m if desc.trans_a else k], b[:, : k if desc.trans_b else n]
    x.uniform_(-1, 1), y.uniform_(-1, 1)
    before = torch.full((m, desc.ldc), math.nan, device="cuda")
    before[:, :n] = torch.rand(m, n, device="cuda")
    for special in (False, True):
        if special:
            x[3, 5], y[-2, -7] = math.inf, math.nan
        p, q = (x.T if desc.trans_a else x), (y.T if desc.trans_b else y)
        want = alpha * (p.double() @ q.double()) + (beta * before[:, :n].double() if beta else 0.0)
        for form in (STRASSEN, WINOGRAD):
            plan = strassen(session, desc, form=form)
            c = before.clone()
            if beta == 0:
                c[:, :n] = math.nan
            plan.starter()(a.data_ptr(), 0, b.data_ptr(), 0, c.data_ptr(), 0, alpha, beta, queue())
            found, finite = c[:, :n].double(), torch.isfinite(want)
            same = torch.equal(finite, torch.isfinite(found)) and torch.equal(
                torch.nan_to_num(found[~finite], 1.0, 2.0, 3.0), torch.nan_to_num(want[~finite], 1.0, 2.0, 3.0)
            )
            error = float((found[finite] - want[finite]).norm() / want[finite].norm())
            if not torch.isnan(c[:, n:]).all():
                return f"{form.name} wrote beside C"
            if not (same and error < 3e-6 and (plan.escalated() > 0) == special):
                return f"{form.name}: error {error:.2g}, Inf and NaN the same: {same}, {plan.escalated()} pieces again"
    return ""


def wrong_by_matmul() -> str:
    """Return what is wrong with calls of the library, as a sentence: a large one, one with a bias, and one that is too small."""
    asked = "fp32x-strassen"
    for n, ran, bias in ((8192, asked, None), (8192, asked, torch.rand(8192, device="cuda")), (4096, "fp32x", None)):
        a, b = (torch.rand(n, n, device="cuda") for _ in "AB")
        found = toprung.matmul(a, b.T, bias=bias, precision=asked)
        receipt = toprung.last_receipt()
        want = a[:ROWS].double() @ b.T.double() + (0 if bias is None else bias.double())
        error = float((found[:ROWS] - want).norm() / want.norm())
        if receipt is None or receipt.precision != ran or receipt.escalated or not error < 3e-6:
            return f"matmul at {n}: error {error:.2g}, {receipt}"
    return ""


class Call:
    """Products of one size: by name what puts a call into PyTorch's stream, and how much scratch memory it takes."""

    def __init__(self, session: Any, n: int) -> None:
        self.n, desc = n, described("NN", n, n, n)
        self.a, self.b, self.c = (torch.empty(n, n, device="cuda") for _ in "ABC")
        self.plans = {
            "fp32x": Fp32xLaunches(session, desc, *candidates(FP32X, session.device, desc)),
            "strassen": strassen(session, desc),
            "winograd": strassen(session, desc, form=WINOGRAD),
        }
        self.work = torch.empty(max(p.plan.workspace_bytes for p in self.plans.values()), dtype=torch.uint8, device="cuda")
        places = self.a.data_ptr(), 0, self.b.data_ptr(), 0, self.c.data_ptr(), 0, 1.0, 0.0, queue(), self.work.data_ptr()
        self.run: dict[str, Callable[[], Any]] = {
            name: functools.partial(plan.starter(), *places) for name, plan in self.plans.items()
        }
        self.run["cuBLAS fp32"] = lambda: torch.mm(self.a, self.b, out=self.c)


def errors(call: Call, name: str) -> dict[str, float]:
    """Return the errors of C on some rows of both halves: relative in the Frobenius norm, normwise and elementwise."""
    rows = torch.linspace(0, call.n - 1, ROWS, device="cuda").long()
    x, y = call.a[rows].double(), call.b.double()
    want = x @ y
    call.c.fill_(math.nan)
    call.run[name]()
    off = (call.c[rows].double() - want).abs()
    normwise = call.n * float(call.a.abs().max()) * float(call.b.abs().max())
    return {
        "frobenius": float(off.norm() / want.norm()),
        "normwise": float(off.max()) / (U * normwise),
        "grade": float((off / (U * (x.abs() @ y.abs()))).max()),
    }


def looped(run: Callable[[], None], calls: int) -> float:
    """Return the seconds of a call, of so many in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


def steps(call: Call) -> dict[str, float]:
    """Return the median seconds of each launch alone, after a pause each."""
    plan, found = call.plans["strassen"], {}
    places = call.a.data_ptr(), 0, call.b.data_ptr(), 0, call.c.data_ptr(), 0, 1.0, 0.0, queue(), call.work.data_ptr()
    split_a, split_b, multiply, combine = plan.plan.launches
    split, product = call.plans["fp32x"].plan.launches
    launches = {
        "split A, along": split_a, "split B, across": split_b, "seven products": multiply, "combine": combine,
        "fp32x: split": split, "fp32x: product": product,
    }  # fmt: skip
    alone = {name: functools.partial(plan.session.launcher(plan.plan.only(launch)), *places) for name, launch in launches.items()}
    call.run["strassen"]()
    for name, run in alone.items():
        if name == "fp32x: split":
            call.run["fp32x"]()
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            time.sleep(0.1)
            times.append(looped(run, 1))
        found[name] = statistics.median(times)
    return found


def timed(session: Any, call: Call, meter: Meter) -> dict[str, dict[str, Any]]:
    """Return seconds, joules and clocks of each, under load and in turns."""
    found: dict[str, dict[str, Any]] = {name: {"seconds": [], "joules": [], "clocks_mhz": []} for name in call.run}
    for _ in range(ROUNDS):
        for name, run in call.run.items():
            end = time.monotonic() + BUSY
            while time.monotonic() < end:
                probe = looped(run, 3)
            calls, before = max(3, int(SAMPLE / probe) + 1), 0.0 if meter.absent else meter.joules()
            found[name]["seconds"].append(looped(run, calls))
            found[name]["clocks_mhz"].append(session.clock_mhz())
            if not meter.absent:
                found[name]["joules"].append((meter.joules() - before) / calls)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", default="right,errors,steps,time")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    options = parser.parse_args()
    parts, sizes, start = options.parts.split(","), [int(n) for n in options.sizes.split(",")], time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = False
    session = session_at(Home("cuda", 0))
    for case in RIGHT if "right" in parts else ():
        if reason := wrong(session, *case):
            print(f"WRONG {case}: {reason}")
            return 1
    if "right" in parts and (reason := wrong_by_matmul()):
        print(f"WRONG {reason}")
        return 1
    print(f"# {len(RIGHT)} products are right, after {time.monotonic() - start:.0f} s" if "right" in parts else "#", flush=True)
    record: dict[str, Any] = {"errors": {}, "steps": {}, "times": {}, "errors_of_times": {}, "workspace_bytes": {}}
    lines = []
    if "errors" in parts:
        call = Call(session, ERRORS_AT)
        for name, values in DISTRIBUTIONS.items():
            torch.manual_seed(0)
            call.a.copy_(values(call.n, call.n, 0)), call.b.copy_(values(call.n, call.n, 1))
            found = record["errors"][name] = {who: errors(call, who) for who in call.run}
            cells = "  ".join(f"{e['frobenius']:.2e} {e['normwise']:8.3g} {e['grade']:8.3g}" for e in found.values())
            lines.append(f"{name:10} {cells}")
        lines.insert(0, f"errors at {call.n}: Frobenius, normwise, grade of " + ", ".join(call.run))
        del call
    meter = Meter(session.device)
    for n in sizes if {"steps", "time"} & set(parts) else ():
        torch.cuda.empty_cache()
        call = Call(session, n)
        call.a.uniform_(-1, 1), call.b.uniform_(-1, 1)
        record["workspace_bytes"][str(n)] = {name: plan.plan.workspace_bytes for name, plan in call.plans.items()}
        if "steps" in parts:
            found_steps = record["steps"][str(n)] = steps(call)
            lines.append(f"{n}: " + ", ".join(f"{name} {1e3 * t:.3f} ms" for name, t in found_steps.items()))
        if "time" in parts:
            off = record["errors_of_times"][str(n)] = {name: errors(call, name) for name in call.run}
            found_times = record["times"][str(n)] = timed(session, call, meter)
            for name, one in found_times.items():
                seconds = statistics.median(one["seconds"])
                joules = statistics.median(one["joules"]) if one["joules"] else math.nan
                lines.append(
                    f"{n:6} {name:12} {2e-12 * n**3 / seconds:6.1f} TFLOP/s {1e3 * seconds:8.2f} ms {joules / seconds:5.0f} W "
                    f"{1e9 * joules / (2.0 * n**3):8.5f} nJ/op {one['clocks_mhz'][-1] or 0:5.0f} MHz F {off[name]['frobenius']:.2e}"
                )
        del call
    what = f"python benchmarks/strassen.py --parts {options.parts} --sizes {options.sizes}"
    results.write(options.out, results.record(what, environment(session), [], **record))
    print("\n".join(lines))
    print(f"# {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
