"""fp32x with split-K: right first, then how long each number of slices takes, beside cuBLAS's fp32.

    timeout 150 python benchmarks/split_k.py OUT [--parts right,deep,graph,time] [--shapes 128x128x65536,512x512x512] [--limit 85]

``right``   every tile and layout with slices against the float64 oracle, Inf, NaN and wide ranges among them; twice, for the same
            bits; with a prepared B; what must be added in order of K against one slice, bit for bit
``deep``    128x128x65536 and 256x256x131072 on sampled rows, beside cuBLAS
``graph``   captured on another stream, replayed twice with other operands in place
``time``    a line a shape: microseconds of whole calls for slices of K with the tile that is predicted best for each, in turns
            with cuBLAS. A star: what is selected. Stops before ``--limit`` seconds are over

Everything goes into OUT/split-k.json as well: for each configuration the medians of the whole call and of each launch alone, and
what the family's cost model predicts, so that its constants can be fitted.

It keeps a loop of its own, for it times each launch of a plan alone and takes sets of operands in turn.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from toprung import backends
from toprung.backends.base import Source
from toprung.dispatch.heuristic import slower_than_fp32
from toprung.kernels.build import source_kernel
from toprung.kernels.hopper_fp32x.config import Fp32xConfig, Variant
from toprung.kernels.hopper_fp32x.cost import COSTS, LAUNCH, SHORTEST, product_time, seconds, select_config
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.hopper_fp32x.sizes import LIMIT, supported, trimmed
from toprung.kernels.registry import family
from toprung.lab import baselines
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice

TILES = (*COSTS, Variant(BN=64, STAGES=8, INTERVAL=2))
RIGHT = (
    ({"M": 128, "N": 128, "K": 2048}, 8),
    ({"M": 129, "N": 65, "K": 1111, "lda": 1120, "ldb": 71, "ldc": 67}, 3),
    ({"M": 70, "N": 90, "K": 5000, "trans": "TT"}, 19),
    ({"M": 200, "N": 131, "K": 777, "trans": "NT", "alpha": 0.7, "beta": 1.3}, 2),
    ({"M": 150, "N": 70, "K": 600, "batch": 5, "trans": "TN"}, 4),
    ({"M": 130, "N": 130, "K": 500, "alpha": 0.0, "beta": -1.0}, 4),
    ({"M": 700, "N": 500, "K": 300, "limit": 340_000}, 2),
    ({"M": 1, "N": 3, "K": 4097}, 130),
)
DATA = ("integers", "uniform", "phi4", "T2", "inf", "nan", "subnormal", "huge-row")
DEEP = (((128, 128, 65536), 33), ((256, 256, 131072), 33))
SHAPES = (
    (128, 128, 65536), (256, 256, 131072), (65536, 64, 4096), (512, 512, 512), (768, 768, 768), (1000, 1000, 1000),
    (384, 384, 16384), (512, 512, 16384), (512, 512, 65536), (640, 640, 8192), (128, 4096, 16384), (128, 128, 4096),
)  # fmt: skip
COUNTS = (1, 2, 4, 8, 16, 33, 66, 132)
ROWS, ROUNDS, BURST = 24, 5, 0.006

FILL = """
extern "C" __global__ void fill(float *x, unsigned long long n, unsigned seed) { // U(-1,1) from a hash of the place
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        unsigned long long h = (i + 0x9E3779B97F4A7C15ull * (seed + 1)) * 0xBF58476D1CE4E5B9ull;
        h = (h ^ h >> 27) * 0x94D049BB133111EBull;
        h ^= h >> 31;
        x[i] = (float)((int)(h >> 40) - (1 << 23)) * 0x1p-23f;
    }
}
"""


def say(good, what, detail=""):
    print(f"{'ok   ' if good else 'WRONG'} {what}{': ' + detail if detail else ''}", flush=True)
    return good


def canonical(bits):
    """With one NaN for all of them."""
    values = bits.view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def bits_of(session, plan, placed, problem, second=None):
    placed.reset()
    a, b, c = (placed.parts[n] for n in "ABC")
    plan.run(a, 0, b if second is None else second, 0, c, 0, problem.alpha, problem.beta)
    return placed.fetch().view(np.uint32).copy()


def right(session):
    good, cases = True, 0
    for shape, slices in RIGHT:
        problem, limit = Gemm(**{k: v for k, v in shape.items() if k != "limit"}), shape.get("limit", LIMIT)
        for number, tile in enumerate(TILES):
            plans = [Fp32xLaunches(session, problem.desc, tile, limit, slices=s) for s in (slices, 1)]
            for name in DATA if number in (0, 3) else DATA[1:5:2]:
                if name == "integers" and not float(problem.alpha).is_integer():
                    continue
                operands = hostile(problem, name)
                placed = OnDevice(operands, session)
                before = plans[0].escalated()
                first = bits_of(session, plans[0], placed, problem)
                wrong = []
                if not np.array_equal(canonical(first), canonical(bits_of(session, plans[0], placed, problem))):
                    wrong.append("a second run gave other bits")
                again = plans[0].escalated() - before
                if (again > 0) < (problem.alpha != 0 and name in ("inf", "nan", "phi4") and problem.M > 1):
                    wrong.append("the guard let it pass")
                if again and name in ("uniform", "integers"):
                    wrong.append(f"{again} pieces computed again")
                verdict = Oracle(operands).verify(first.view(np.float32), "fp32x")
                wrong += verdict.problems
                one = bits_of(session, plans[1], placed, problem)
                if name in ("inf", "nan") and not np.array_equal(*(np.isfinite(x.view(np.float32)) for x in (first, one))):
                    wrong.append("Inf and NaN are elsewhere than with one slice")
                if problem.batch == 1 and limit == LIMIT:
                    prepared = plans[0].prepare(placed.parts["B"])
                    other = bits_of(session, plans[0], placed, problem, prepared)
                    wrong += Oracle(operands).verify(other.view(np.float32), "fp32x").problems
                    if name in ("uniform", "integers", "inf", "nan") and not np.array_equal(canonical(other), canonical(first)):
                        wrong.append("a prepared B gave other bits")
                cases += 1
                if wrong:
                    good = say(False, f"{tile} {problem} {name} in {slices}", "; ".join(map(str, wrong))[:500])
    say(good, f"right: {cases} cases with slices")
    return in_order(session) & shared(session) & good


def in_order(session):
    """Sums that may overflow are added in order of K, as one slice does: the same bits."""
    good = True
    for trans in ("NN", "TT"):
        problem = Gemm(200, 100, 1000, trans=trans)
        operands = hostile(problem, "uniform")
        for name in "AB":
            operands.flat[name] *= np.float32(2.0**62)
        placed = OnDevice(operands, session)
        for tile in TILES:
            one, many = (Fp32xLaunches(session, problem.desc, tile, slices=s) for s in (1, 5))
            first, second = (canonical(bits_of(session, p, placed, problem)) for p in (one, many))
            same = np.array_equal(first, second)
            counts = one.escalated(), many.escalated()
            if not same or counts[0] != counts[1] or not counts[0]:
                good = say(False, f"in order {trans} {tile}", f"{(first != second).sum()} elements differ; pieces {counts}")
    return say(good, "what may overflow is added in order of K")


def shared(session):
    """Products of a batch that share A, or B."""
    good, rng = True, np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, s).astype(np.float32) for s in ((3, 100, 900), (3, 900, 70)))
    for few_a, few_b in ((1, 3), (3, 1)):
        strides = {"stride_a": 90000 if few_a > 1 else 0, "stride_b": 63000 if few_b > 1 else 0}
        desc = replace(Gemm(100, 70, 900, batch=3).desc, **strides)
        buffers = [session.allocate(x.nbytes) for x in (a, b)]
        for buffer, x in zip(buffers, (a, b), strict=True):
            session.upload(buffer, x)
        out, found = session.allocate(4 * 21000), np.empty((3, 100, 70), np.float32)
        Fp32xLaunches(session, desc, slices=3).run(buffers[0], 0, buffers[1], 0, out, 0, 1.0, 0.0)
        session.download(out, found)
        good &= np.array_equal(found, a[:few_a] @ b[:few_b])
    return say(good, "batches that share an operand")


class Set:
    """Operands on the device."""

    def __init__(self, session, fill, problem, seed):
        self.problem, self.session = problem, session
        self.buffers = [session.allocate(m.nbytes) for m in self.problem.matrices]
        for i, one in enumerate(self.buffers[:2]):
            session.bind(fill, (1024,), (256,), (one, np.uint64(one.nbytes // 4), np.uint32(2 * seed + i)))()
        self.addresses = tuple(b.pointer for b in self.buffers)

    def vendor(self):
        """cuBLAS fp32, through the peer's own way."""
        parts = dict(zip("ABC", self.buffers, strict=True))
        placed = SimpleNamespace(operands=SimpleNamespace(problem=self.problem), session=self.session, parts=parts)
        return baselines.peer("cublas").prepare(placed).run

    def error(self):
        """Frobenius error on sampled rows of what is in C now."""
        p = self.problem
        arrays = []
        for buffer, shape in zip(self.buffers, ((p.M, p.K), (p.K, p.N), (p.M, p.N)), strict=True):
            arrays.append(np.empty(shape, np.float32))
            self.session.download(buffer, arrays[-1])
        a, b, c = arrays
        rows = np.unique(np.linspace(0, p.M - 1, ROWS).astype(int))
        want = np.zeros((len(rows), p.N))
        for k in range(0, p.K, 16384):
            want += a[rows, k : k + 16384].astype(np.float64) @ b[k : k + 16384].astype(np.float64)
        return float(np.linalg.norm(c[rows] - want) / np.linalg.norm(want))


def deep(session, fill, report):
    good = True
    for shape, slices in DEEP:
        one = Set(session, fill, Gemm(*shape), 0)
        found = []
        for count in (slices, slices, 1):
            plan = Fp32xLaunches(session, Gemm(*shape).desc, slices=count)
            plan.run(*(x for pair in zip(one.addresses, (0, 0, 0), strict=True) for x in pair), 1.0, 0.0)
            array = np.empty(shape[:2], np.float32)
            session.download(one.buffers[2], array)
            found.append((array, one.error()))
        one.vendor()()
        theirs = one.error()
        errors = found[0][1], found[2][1], theirs
        report.append({"shape": shape, "slices": slices, "frobenius": errors[0], "one_slice": errors[1], "cublas": theirs})
        same = np.array_equal(found[0][0], found[1][0])
        detail = f"Frobenius {errors[0]:.2e}, in one slice {errors[1]:.2e}, cuBLAS {theirs:.2e}{'' if same else '; other bits'}"
        good &= say(same and errors[0] <= 1.1 * errors[1] and errors[0] < 1e-5, f"deep {shape} in {slices}", detail)
    return good


def graph(session, fill):
    """Captured on another stream; what it reads changes between replays."""
    from cuda.bindings import driver

    good, other = True, session.branch()
    one, shape = Set(session, fill, Gemm(256, 192, 4096), 0), (256, 192, 4096)
    plan = Fp32xLaunches(session, Gemm(*shape).desc, slices=9)
    a, b, c = one.addresses
    stream = other.queue

    def checked(status, *rest):
        if status:
            raise RuntimeError(str(status))
        return rest[0] if rest else None

    plan.reserve(stream)
    session.synchronize()
    with session.current():
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(*driver.cuStreamBeginCapture(stream, mode))
        plan.run(a, 0, b, 0, c, 0, 1.0, 0.0, stream)
        made = checked(*driver.cuStreamEndCapture(stream))
        ready = checked(*driver.cuGraphInstantiate(made, 0))
        for seed in (1, 2, 3):
            another = Set(session, fill, Gemm(*shape), seed)
            checked(*driver.cuCtxSynchronize())
            for to, source in zip(one.buffers[:2], another.buffers, strict=False):
                checked(*driver.cuMemcpyDtoD(to.pointer, source.pointer, to.nbytes))
            checked(*driver.cuCtxSynchronize())
            if seed == 3:  # one element of A: its row of C is NaN, and what was flagged before is not again
                session.upload(session.foreign(a, 4), np.full(1, np.nan, np.float32))
            found = []
            for replay in (True, True, False):
                session.upload(one.buffers[2], np.zeros(shape[0] * shape[1], np.float32))
                if replay:
                    checked(*driver.cuGraphLaunch(ready, stream))
                    checked(*driver.cuStreamSynchronize(stream))
                else:
                    plan.run(a, 0, b, 0, c, 0, 1.0, 0.0)
                array = np.empty(shape[:2], np.float32)
                session.download(one.buffers[2], array)
                found.append(array)
            same = all(np.array_equal(found[0], x, equal_nan=True) for x in found[1:])
            nans = np.isnan(found[0]).any(axis=1)
            expected = nans[0] and not nans[1:].any() if seed == 3 else not nans.any()
            good &= same and bool(expected) and bool(found[0].any())
    return say(good, "graph: three operands, two replays each, the bits of a plain run")


def timed(session, run, calls):
    start = session.mark()
    for _ in range(calls):
        run()
    return session.seconds(start, session.mark()) / calls


def configurations(desc, units):
    """Return the selected configuration, and for each number of slices the tile that is predicted best."""
    chosen, found = select_config(desc, units), {}
    most = max(1, desc.K // 64)
    for count in COUNTS:
        slices = trimmed(desc.K, min(count, most))
        if slices > 1 and 4 * slices * desc.M * desc.N > 1 << 30:
            continue
        best = min((Fp32xConfig(v, slices) for v in COSTS), key=lambda config: product_time(desc, config, units))
        found.setdefault(slices, best)
    plain = replace(chosen.variant, INTERVAL=1)
    return [*(config for config in found.values() if config != Fp32xConfig(plain, chosen.slices)), chosen]


def parts(plan, one):
    """Each launch of a plan on a set."""
    (step,) = plan.steps()
    a, b, c = one.addresses
    found = {"split": lambda: step.split_only(a, b, None), "multiply": lambda: step.multiply_only(a, b, c, 1.0, 0.0, None)}
    return found | ({"reduce": lambda: step.reduce_only(c, 1.0, 0.0, None)} if plan.slices > 1 else {})


def compare(session, fill, shape):
    """Medians of each configuration and of cuBLAS, in turns."""
    desc, units = Gemm(*shape).desc, session.device.compute_units
    sets = [Set(session, fill, Gemm(*shape), i) for i in range(2)]
    chosen, configs, runs = select_config(desc, units), configurations(desc, units), []
    turn = [0]

    def ours(plan):
        def run():
            turn[0] ^= 1
            a, b, c = sets[turn[0]].addresses
            plan.run(a, 0, b, 0, c, 0, 1.0, 0.0)

        return run

    plans = [Fp32xLaunches(session, desc, c.variant, slices=c.slices) for c in configs]
    runs = [ours(p) for p in plans]
    vendors = [s.vendor() for s in sets]

    def theirs():
        turn[0] ^= 1
        vendors[turn[0]]()

    runs.append(theirs)
    calls = []
    for run in runs:
        run()
        session.synchronize()
        calls.append(max(2, min(100, int(BURST / timed(session, run, 2)))))
    samples = [[] for _ in runs]
    for _ in range(ROUNDS):
        for i, run in enumerate(runs):
            samples[i].append(timed(session, run, calls[i]))
    medians = [float(np.median(s)) for s in samples]
    rows, found = desc.M + desc.N, []
    for i, (config, plan, median, count) in enumerate(zip(configs, plans, medians, calls, strict=False)):
        alone = {}
        for name, run in parts(plan, sets[0]).items():
            run()
            alone[name] = float(np.median([timed(session, run, count) for _ in range(3)]))
        found.append({
            "tile": str(config.variant), "slices": config.slices, "chosen": config == chosen, "seconds": median, "alone": alone,
            "reckoned": seconds(desc, config, units), "reckoned_product": product_time(desc, config, units),
            "workspace_bytes": plan.workspace_bytes, "samples": samples[i],
        })  # fmt: skip
    plans[-1].run(*(x for pair in zip(sets[0].addresses, (0, 0, 0), strict=True) for x in pair), 1.0, 0.0)
    return {
        "shape": shape, "operand_bytes": 4 * rows * desc.K, "ways": found, "cublas": medians[-1], "cublas_samples": samples[-1],
        "auto": not slower_than_fp32(session.device, desc, family("hopper_fp32x")),
        "frobenius": sets[0].error() if desc.M * desc.N < 1 << 21 else None,
    }  # fmt: skip


def line(row):
    ways = sorted(row["ways"], key=lambda w: w["slices"])
    text = " ".join(f"{w['slices']}{'*' * w['chosen']}:{w['seconds'] * 1e6:.0f}" for w in ways)
    own = next(w for w in ways if w["chosen"])
    alone = "+".join(f"{v * 1e6:.0f}" for v in own["alone"].values())
    best = min(ways, key=lambda w: w["seconds"])
    return (
        f"{'x'.join(map(str, row['shape'])):16} {text:56} | {own['tile']} {alone}, predicted {own['reckoned'] * 1e6:.0f}"
        f" | cuBLAS {row['cublas'] * 1e6:.0f}: {row['cublas'] / own['seconds']:.2f} (best {row['cublas'] / best['seconds']:.2f})"
        f"{' auto' if row['auto'] else ''}"
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--parts", default="right,deep,graph,time")
    arguments.add_argument("--shapes", default=",".join("x".join(map(str, s)) for s in SHAPES))
    arguments.add_argument("--limit", type=float, default=85)
    chosen = arguments.parse_args()
    device = next((d for d in backends.devices() if d.backend == "cuda"), None)
    if device is None:
        raise SystemExit("no CUDA device: " + " ".join(backends.advice()))
    if reason := supported(device, Gemm(128, 128, 128).desc):
        raise SystemExit(reason)
    chosen.out.mkdir(parents=True, exist_ok=True)
    start, wanted, good = time.monotonic(), chosen.parts.split(","), True
    report, lines, errors, failures = [], [], [], []
    with backends.opened(device) as session:
        fill = source_kernel(Source("benchmarks/fill", FILL, "fill", {}, "cuda"), session)
        checks = {
            "right": lambda: right(session),
            "deep": lambda: deep(session, fill, errors),
            "graph": lambda: graph(session, fill),
        }
        for name, check in checks.items():
            if name in wanted:
                try:
                    good &= check()
                except Exception as error:
                    good = say(False, name, f"{type(error).__name__}: {str(error)[-600:]}")
                print(f"# {time.monotonic() - start:.0f} s", flush=True)
        for text in chosen.shapes.split(",") if "time" in wanted else ():
            if time.monotonic() - start > chosen.limit:
                failures.append(f"{text}: no time left")
                continue
            try:
                report.append(compare(session, fill, tuple(int(n) for n in text.split("x"))))
                lines.append(line(report[-1]))
            except Exception as error:
                failures.append(f"{text}: {type(error).__name__}: {str(error)[-400:]}")
            results.write(
                chosen.out / "split-k.json",
                results.record(
                    f"python benchmarks/split_k.py --parts {chosen.parts}", environment(session), [], failures, kind="split-k",
                    right=good, shapes=report, deep=errors, constants={"SHORTEST": SHORTEST, "LAUNCH": LAUNCH},
                ),
            )  # fmt: skip
    print("\n".join([*lines, *(f"FAILED {f}" for f in failures), f"# {time.monotonic() - start:.0f} s"]))
    return 0 if good and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
