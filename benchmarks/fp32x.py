"""fp32 from matrix units beside cuBLAS's fp32 under load, and its accuracy: the records that issue figures come from.

    python benchmarks/fp32x.py results/nvidia-h200 [--parts squares,transposes,…] [--sizes 512,1024,…]

``squares``      NN, in turns with cuBLAS (A B A B …): two seconds of the same call before each sample of a second, three samples
``transposes``   the other three, ours alone: two seconds, then three samples
``rectangles``   both, each two seconds, then three samples
``accuracy``     every input distribution over K, beside cuBLAS
``matmul``       ``toprung.matmul(a, b)`` beside ``torch.matmul(a, b)`` in fp32 on CUDA tensors, squares from 1024 on, in turns:
                 a second of the same call before each sample of half a second, three samples; into fp32x-matmul.json, in a minute

``burst``        NN, in turns with cuBLAS, the device idle for 0.3 s before each sample of ten calls or 20 ms (of fewer calls where
                 ten take more than 0.1 s), five samples; into fp32x-burst.json, in half a minute. Only where it is named

The first three go into fp32x-sustained.json, the fourth into fp32x-accuracy.json. Timed calls take three sets of operands in turn,
and before each call a kernel changes its set in place: it negates 4,096 elements of A and of B spread over them. Its time,
measured alone in the same way, is subtracted from the sample; both are in the record. Every call splits both operands.
All parts but the last take about eight minutes; ``--parts squares,accuracy`` about three.

It keeps a loop of its own, for operands change in place between timed calls.
"""

import argparse
import functools
import gc
import itertools
import time
from pathlib import Path

import numpy as np

from toprung import backends
from toprung.backends.base import Source
from toprung.dispatch.ranking import slower_than_fp32
from toprung.dispatch.selection import Candidate
from toprung.errors import Unsupported
from toprung.kernels.base import candidates
from toprung.kernels.build import source_kernel
from toprung.kernels.registry import family
from toprung.lab import baselines
from toprung.lab.competitor import BoundOnDevice, Promise
from toprung.lab.harness import results
from toprung.lab.harness.accuracy import sweep
from toprung.lab.harness.environment import environment
from toprung.lab.harness.library import Toprung
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.power import Meter
from toprung.oracle.gemm import TRANSPOSES, Gemm

FP32X, IN_FLIGHT = family("hopper_fp32x"), family("hopper_inflight")


def launches(session, desc):
    """Launches of a product with both operands split beforehand, in the cost model's block and slices."""
    (config,) = candidates(FP32X, session.device, desc)
    return FP32X.compile(session, desc, config)


SIZES = (512, 1024, 2048, 4096, 8192, 16384)
RECTANGLES = (
    (4096, 4096, 512), (65536, 64, 4096), (64, 65536, 4096), (128, 128, 65536), (256, 256, 131072), (512, 512, 16384),
    (4095, 4097, 4099), (8192, 8192, 64), (16, 4096, 4096), (1, 8192, 8192),
)  # fmt: skip
SETS, SAMPLES, BUSY, SAMPLE = 3, 3, 2.0, 1.0
BURSTS, PAUSE, BURST, LONGEST_BURST, CALLS = 5, 0.3, 0.02, 0.1, 10
SMALLEST_MATMUL = 1024  # from which on matmul is timed
ROWS = 64
DEPTHS = (64, 512, 4096, 16384)
SIDE = 2048  # M and N of accuracy: large enough that cuBLAS does not split K, as in the products that are timed

KERNELS = """
extern "C" __global__ void fill(float *x, unsigned long long n, unsigned seed) { // U(-1,1) from a hash of the place
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        unsigned long long h = (i + 0x9E3779B97F4A7C15ull * (seed + 1)) * 0xBF58476D1CE4E5B9ull;
        h = (h ^ h >> 27) * 0x94D049BB133111EBull;
        h ^= h >> 31;
        x[i] = (float)((int)(h >> 40) - (1 << 23)) * 0x1p-23f;
    }
}
extern "C" __global__ void change(float *a, unsigned long long na, float *b, unsigned long long nb) {
    unsigned long long i = blockIdx.x * 256ull + threadIdx.x, pa = na / 4096, pb = nb / 4096;
    a[i * pa + i % pa] *= -1.0f;
    b[i * pb + i % pb] *= -1.0f;
}
"""


def described(who, variant):
    """Return a competitor of ours as records have it."""
    return {
        "kind": "library", "name": who.name, "number": 0, "idea": who.title, "variant": variant, "tile": {}, "options": {},
        "precision": "fp32x", "deterministic": True, "note": "",
    }  # fmt: skip


class Ours:
    """fp32x as a competitor."""

    name, title, promise = "fp32x", "two fp16 terms on matrix units", Promise("fp32x")
    plan = None

    def absent(self, device):
        return FP32X.supports(device, Gemm(128, 128, 128).desc)

    def prepare(self, placed):
        problem = placed.operands.problem
        if reason := FP32X.supports(placed.session.device, problem.desc):
            raise Unsupported(reason)
        plan = self.plan = launches(placed.session, problem.desc)
        a, b, c = (placed.parts[n] for n in "ABC")
        return BoundOnDevice(placed, functools.partial(plan.starter(), a, 0, b, 0, c, 0, problem.alpha, problem.beta))

    def describe(self, device):
        plan = self.plan
        return described(self, str(plan.config) if plan else "")


class InFlight:
    """fp32x in flight as a competitor, in the block that its model takes."""

    name, title, promise = "fp32x in flight", "two fp16 terms on matrix units, split on the way", Promise("fp32x")
    config = None

    def absent(self, device):
        return IN_FLIGHT.supports(device, Gemm(128, 128, 128).desc)

    def prepare(self, placed):
        device, desc = placed.session.device, placed.operands.problem.desc
        if reason := IN_FLIGHT.supports(device, desc):
            raise Unsupported(reason)
        self.config = min(candidates(IN_FLIGHT, device, desc), key=lambda config: IN_FLIGHT.cost(device, desc, config))
        return Toprung(candidate=Candidate(IN_FLIGHT, self.config)).prepare(placed)

    def describe(self, device):
        return described(self, str(self.config or ""))


class Set:
    """Operands on the device."""

    def __init__(self, session, kernels, problem, seed, buffers=None):
        self.problem = problem
        self.buffers = buffers or [session.allocate(m.nbytes) for m in problem.matrices]
        a, b = self.buffers[:2]
        for i, one in enumerate((a, b)):
            arguments = (one, np.uint64(one.nbytes // 4), np.uint32(2 * seed + i))
            session.bind(kernels["fill"], (1024,), (256,), arguments)()
        sizes = np.uint64(a.nbytes // 4), np.uint64(b.nbytes // 4)
        self.change = session.bind(kernels["change"], (16,), (256,), (a, sizes[0], b, sizes[1]))


def vendor_call(session, problem, one):
    """cuBLAS fp32 on a set, through the peer's own way."""
    from types import SimpleNamespace

    names = [m.name for m in problem.matrices]
    placed = SimpleNamespace(
        operands=SimpleNamespace(problem=problem), session=session, parts=dict(zip(names, one.buffers, strict=True))
    )
    return baselines.peer("cublas").prepare(placed).run


def errors(session, problem, one):
    """Grade ratio and Frobenius error on sampled rows, of what is in C now."""
    arrays = []
    for m, buffer in zip(problem.matrices, one.buffers, strict=True):
        array = np.empty((m.rows, m.cols), np.float32)
        session.download(buffer, array)
        arrays.append(array)
    a, b, c = arrays
    a, b = a.T if problem.trans[0] == "T" else a, b.T if problem.trans[1] == "T" else b
    rows = np.unique(np.linspace(0, problem.M - 1, ROWS).astype(int))
    worst = off = norm = 0.0
    x = a[rows].astype(np.float64)
    for first in range(0, problem.N, 2048):
        cols = slice(first, first + 2048)
        y = b[:, cols].astype(np.float64)
        want, size = x @ y, np.abs(x) @ np.abs(y)
        difference = np.abs(c[rows][:, cols] - want)
        worst = float(np.max((worst, np.max(difference / (2.0**-24 * size)))))
        off, norm = off + np.sum(difference**2), norm + np.sum(want**2)
    frobenius = float(np.sqrt(off / norm))
    return {
        "right": bool(frobenius <= 1e-5), "grade": worst, "frobenius": frobenius, "max_relative": 0.0, "median_relative": 0.0,
        "problems": [],
    }  # fmt: skip


class Runner:
    """A competitor on the sets of a problem: samples as they come in."""

    def __init__(self, session, who, problem, sets, calls, workspace=0, busy=BUSY, sample=SAMPLE, burst=False):
        self.session, self.who, self.problem, self.sets, self.launches = session, who, problem, sets, calls
        self.seconds, self.raw, self.clocks, self.joules, self.workspace = [], [], [], [], workspace
        self.turn, self.busy_for, self.mode = 0, busy, "burst" if burst else "sustained"
        self.loop(3, True)
        self.changing = min(self.loop(500, False) for _ in range(3))
        probe = self.loop(max(1, min(100, int(0.1 / self.loop(3, True)))), True)
        self.calls = max(3, int(sample / probe) + 1)
        if burst:
            self.calls = max(1, min(max(CALLS, int(BURST / probe)), int(LONGEST_BURST / probe)))

    def loop(self, calls, multiply, in_flight=None):
        """Seconds a call, the change included."""
        start = self.session.mark()
        for _ in range(calls):
            i = self.turn = (self.turn + 1) % SETS
            self.sets[i].change()
            if multiply:
                self.launches[i]()
        end = self.session.mark()
        if in_flight:
            in_flight()
        return self.session.seconds(start, end) / calls

    def busy(self):
        """Some seconds of the same."""
        end = time.monotonic() + self.busy_for
        while time.monotonic() < end:
            self.loop(max(1, self.calls // 10), True)

    def sample(self, meter):
        """One more."""
        counted = self.mode == "sustained" and not meter.absent  # a burst is shorter than the meter's steps
        before = meter.joules() if counted else 0.0
        taken = self.loop(self.calls, True, lambda: self.clocks.append(self.session.clock_mhz()))
        if counted:
            self.joules.append((meter.joules() - before) / self.calls)
        self.raw.append(taken)
        self.seconds.append(taken - self.changing)

    def measurement(self, verdict):
        """Return what has come in."""
        p = self.problem
        found = Measurement(
            self.who, p.describe(), p.flops, p.min_bytes, verdict, tuple(self.seconds), (), self.calls, tuple(self.clocks),
            self.mode, tuple(self.joules),
        ).describe()  # fmt: skip
        operands = sum(m.nbytes for m in p.matrices if not m.output)
        return {
            **found, "raw_seconds": self.raw, "change_seconds": self.changing, "workspace_bytes": self.workspace,
            "operand_bytes": operands,
        }  # fmt: skip


def compare(session, kernels, meter, problem, vendor, interleaved, burst=False):
    """Measurements of ours, and of cuBLAS if asked for; after pauses, or under load."""
    sets = [Set(session, kernels, problem, i) for i in range(SETS)]
    plan = launches(session, problem.desc)
    calls = []
    for one in sets:
        a, b, c = (buffer.pointer for buffer in one.buffers)
        calls.append(functools.partial(plan.starter(), a, 0, b, 0, c, 0, 1.0, 0.0))
    ours = Ours()
    ours.plan = plan
    runners = [Runner(session, ours.describe(session.device), problem, sets, calls, plan.plan.workspace_bytes, burst=burst)]
    if vendor:
        theirs = baselines.peer("cublas").describe(session.device)
        theirs_on = [vendor_call(session, problem, one) for one in sets]
        runners.append(Runner(session, dict(theirs), problem, sets, theirs_on, burst=burst))
    verdicts = []
    for runner in runners:
        runner.launches[0]()
        session.synchronize()
        verdicts.append(errors(session, problem, sets[0]))
    if burst:
        for _ in range(BURSTS):
            for runner in runners:
                session.synchronize()
                time.sleep(PAUSE)
                runner.sample(meter)
    elif interleaved:
        for _ in range(SAMPLES):
            for runner in runners:
                runner.busy()
                runner.sample(meter)
    else:
        for runner in runners:
            runner.busy()
            for _ in range(SAMPLES):
                runner.sample(meter)
    found = [r.measurement(v) for r, v in zip(runners, verdicts, strict=True)]
    found[0] |= {
        "granules_in_fp32": plan.escalated(),
        "chosen_by_auto": not slower_than_fp32(session.device, problem.desc, FP32X),
    }
    return told(found, problem)


def tensor_errors(a, b, c):
    """Grade ratio and Frobenius error on sampled rows of tensors."""
    rows = np.unique(np.linspace(0, len(a) - 1, ROWS).astype(int)).tolist()
    x, y = a[rows].double(), b.double()
    want = x @ y
    difference = (c[rows].double() - want).abs()
    frobenius = float(difference.norm() / want.norm())
    worst = float((difference / (2.0**-24 * (x.abs() @ y.abs()))).max())
    return {
        "right": bool(frobenius <= 1e-5), "grade": worst, "frobenius": frobenius, "max_relative": 0.0, "median_relative": 0.0,
        "problems": [],
    }  # fmt: skip


def matmuls(session, kernels, meter, n):
    """``toprung.matmul`` and ``torch.matmul`` on the same tensors, in the session's stream."""
    import torch

    import toprung

    torch.backends.cuda.matmul.allow_tf32 = False
    problem, device = Gemm(n, n, n), torch.device("cuda", session.device.handle)
    with torch.cuda.stream(torch.cuda.ExternalStream(int(session.queue), device)):
        tensors = [[torch.empty(n, n, device=device) for _ in "AB"] for _ in range(SETS)]
        sets = [
            Set(session, kernels, problem, i, [session.foreign(t.data_ptr(), 4 * n * n) for t in pair])
            for i, pair in enumerate(tensors)
        ]
        made = {}

        def calls(name, multiply):
            def call(a, b):
                made[name] = multiply(a, b)

            return [lambda pair=pair: call(*pair) for pair in tensors]

        ways = {"toprung": calls("toprung", toprung.matmul), "torch": calls("torch", torch.matmul)}
        verdicts, receipt = {}, None
        for name, ours in ways.items():
            ours[0]()
            receipt = receipt or toprung.last_receipt()
            verdicts[name] = tensor_errors(*tensors[0], made[name])
        print(receipt, flush=True)
        who = {name: {**Ours().describe(session.device), "name": name, "idea": f"{name}.matmul"} for name in ways}
        who["toprung"] |= {"precision": receipt.precision, "variant": ", ".join(receipt.kernels), "note": receipt.why}
        who["torch"] |= {"precision": "fp32", "deterministic": False, "note": f"PyTorch {torch.__version__}"}
        runners = [
            Runner(
                session, who[name], problem, sets, ours, receipt.workspace_bytes if name == "toprung" else 0, BUSY / 2, SAMPLE / 2
            )
            for name, ours in ways.items()
        ]
        for _ in range(SAMPLES):
            for runner in runners:
                runner.busy()
                runner.sample(meter)
        found = [r.measurement(verdicts[name]) for r, name in zip(runners, ways, strict=True)]
        found[0] |= {"granules_in_fp32": receipt.escalated}
    return told(found, problem)


def told(found, problem):
    """Print a line for each, and how the first compares with the second."""
    for m in found:
        watts = np.median(m["joules"]) / np.median(m["raw_seconds"]) if m["joules"] else float("nan")
        print(
            f"{m['competitor']['name']:8} {str(problem)[:34]:34} {m['gflops'] / 1e3:7.1f} TFLOP/s"
            f"  {m['median_seconds'] * 1e6:10.1f} us"
            f" (+{m['change_seconds'] * 1e6:.1f})  {watts:5.0f} W {m['clocks_mhz'][-1] or 0:5.0f} MHz"
            f"  grade {m['verdict']['grade']:7.3g}  F {m['verdict']['frobenius']:.2e}",
            flush=True,
        )
    if len(found) > 1:
        ratio = found[1]["median_seconds"] / found[0]["median_seconds"]
        print(f"{'':8} {ratio:.2f} times as fast as {found[1]['competitor']['name']}", flush=True)
    return found


def accuracy(session, folder, what, depths):
    """Every distribution over K."""
    candidates = [Ours(), InFlight()]
    graded = list(sweep([baselines.peer("cublas"), *candidates], session, depths, side=SIDE))
    results.write(
        folder / "fp32x-accuracy.json",
        results.record(what, environment(session), [], kind="fp32x-accuracy", graded=[g.describe() for g in graded]),
    )
    graded_of = {}
    for g in graded:
        graded_of.setdefault((g.problem["K"], g.distribution), {})[g.competitor["name"]] = g
    good = True
    print(f"{'K':>6} {'distribution':12} {'':16} {'grade':>9} {'cuBLAS':>9} {'F':>9} {'cuBLAS':>9}")
    for ((depth, name), both), who in itertools.product(graded_of.items(), (one.name for one in candidates)):
        ours, theirs = both.get(who), both.get("cublas")
        if not ours or not ours.verdict or not theirs or not theirs.verdict:
            print(f"{depth:6} {name:12} {[(g.competitor['name'], g.note) for g in both.values()]}")
            good = False
            continue
        x, y = ours.verdict, theirs.verdict
        within = x.right and x.grade <= max(2 * y.grade, 1e-9) and x.frobenius <= max(y.frobenius * 1.0001, 1e-12)
        good &= x.right and x.grade <= max(2 * y.grade, 1e-9)
        mark = "" if within else "  <-- " + (x.problems[0][:120] if x.problems else "over cuBLAS")
        print(f"{depth:6} {name:12} {who:16} {x.grade:9.3g} {y.grade:9.3g} {x.frobenius:9.2e} {y.frobenius:9.2e}{mark}", flush=True)
    return good


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--parts", default="accuracy,squares,rectangles,transposes,matmul")
    arguments.add_argument("--sizes", default=",".join(map(str, SIZES)))
    arguments.add_argument("--depths", default=",".join(map(str, DEPTHS)), help="K of accuracy")
    chosen = arguments.parse_args()
    device = next((d for d in backends.devices() if d.backend == "cuda"), None)
    if device is None:
        raise SystemExit("no CUDA device: " + " ".join(backends.advice()))
    if reason := Ours().absent(device):
        raise SystemExit(reason)
    start, parts = time.monotonic(), chosen.parts.split(",")
    what = f"python benchmarks/fp32x.py --parts {chosen.parts} --sizes {chosen.sizes} --depths {chosen.depths}"
    sizes = [int(n) for n in chosen.sizes.split(",")]
    cases = []
    if "squares" in parts:
        cases += [(Gemm(n, n, n), True, True) for n in sizes]
    if "rectangles" in parts:
        cases += [(Gemm(*r), True, False) for r in RECTANGLES]
    if "transposes" in parts:
        cases += [(Gemm(n, n, n, trans=t), False, False) for n in sizes for t in TRANSPOSES[1:]]
    measured, multiplied, failures, good = [], [], [], True
    with backends.opened(device) as session:
        if "accuracy" in parts:
            good = accuracy(session, chosen.folder, what, [int(k) for k in chosen.depths.split(",")])
        meter = Meter(device)
        kernels = {k: source_kernel(Source(f"benchmarks/{k}", KERNELS, k, {}, "cuda"), session) for k in ("fill", "change")}
        for problem, vendor, interleaved in cases:
            try:
                measured += compare(session, kernels, meter, problem, vendor, interleaved)
            except Exception as error:
                failures.append(f"{problem}: {type(error).__name__}: {error}")
                print(f"FAILED {failures[-1][:400]}", flush=True)
            gc.collect()
            results.write(
                chosen.folder / "fp32x-sustained.json",
                results.record(what, environment(session), measured, failures, kind="fp32x"),
            )
        short = []
        for n in sizes if "burst" in parts else ():
            try:
                short += compare(session, kernels, meter, Gemm(n, n, n), True, True, burst=True)
            except Exception as error:
                failures.append(f"burst {n}: {type(error).__name__}: {error}")
                print(f"FAILED {failures[-1][:400]}", flush=True)
            gc.collect()
            results.write(
                chosen.folder / "fp32x-burst.json",
                results.record(what, environment(session), short, failures, kind="fp32x"),
            )
        for n in [n for n in sizes if n >= SMALLEST_MATMUL] if "matmul" in parts else ():
            try:
                multiplied += matmuls(session, kernels, meter, n)
            except Exception as error:
                failures.append(f"matmul {n}: {type(error).__name__}: {error}")
                print(f"FAILED {failures[-1][:400]}", flush=True)
            gc.collect()
            results.write(
                chosen.folder / "fp32x-matmul.json",
                results.record(what, environment(session), multiplied, failures, kind="fp32x"),
            )
    print(f"# {time.monotonic() - start:.0f} s")
    return 0 if good and not failures else 1


if __name__ == "__main__":
    raise SystemExit(main())
