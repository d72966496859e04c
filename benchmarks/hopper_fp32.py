"""Plain fp32 on Hopper (the family ``hopper_sgemm``): right first, then how long it takes, in turns with cuBLAS's fp32.

    timeout 200 python benchmarks/hopper_fp32.py OUT [--parts right,time] [--cases all|few] [--shapes 8192:NN,1000,65536x64x4096:TN]
                                                     [--variants all] [--macros A=1,B=2] [--sustained SECONDS] [--limit 170]

``right``   every block shape, each layout, edges, α and β, parts of tiles, panels, Inf and NaN, all against the float64 oracle with
            canaries around; twice, for the same bits; operands off 16 bytes; a captured graph. Waiting ends in a trap.
            ``--cases few``: of the block shapes the library's first alone
``time``    a line a shape and layout: µs of whole calls, the share of cuBLAS's speed, Frobenius errors of both, layout pass and
            product alone, what is predicted. ``--variants all``: every block shape; else what is chosen. ``--macros``, as often as
            wanted: what is chosen once more, compiled with these, as a control of an idea; ``LINK=20``: with links of 20 stages.
            ``--sustained``: samples of so many seconds, with watts, MHz and pJ a flop

Everything goes into OUT/hopper-fp32.json as well. ``right`` takes about half a minute.

It keeps a loop of its own, for it times each launch of a plan alone and takes sets of operands in turn.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path

import numpy as np

from split_k import FILL, Set, canonical, say, timed
from toprung import backends
from toprung.backends.base import Source
from toprung.gemm.desc import GemmDesc
from toprung.kernels.build import source_kernel
from toprung.kernels.hopper_sgemm import cost
from toprung.kernels.hopper_sgemm.config import VARIANTS, SgemmConfig
from toprung.kernels.hopper_sgemm.cost import predicted, select_variant, supported, unfit
from toprung.kernels.hopper_sgemm.launches import LIMIT, SgemmLaunches
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.power import Meter
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import TRANSPOSES, Gemm
from toprung.oracle.placed import OnDevice

SPIN = 1 << 22
TILES = (*VARIANTS, SgemmConfig(BK=16, STAGES=5, WAIT_AT=8), SgemmConfig(BK=8, STAGES=8, WAIT_AT=0))
EDGES = (
    {"M": 256, "N": 512, "K": 64},
    {"M": 129, "N": 257, "K": 13, "lda": 40, "ldb": 261, "ldc": 259},
    {"M": 1, "N": 1, "K": 1},
    {"M": 3, "N": 700, "K": 5, "beta": -1.0},
    {"M": 700, "N": 2, "K": 12, "alpha": 0.5},
    {"M": 300, "N": 260, "K": 1000, "alpha": 0.7, "beta": 1.3},
    {"M": 300, "N": 260, "K": 100, "alpha": 0.0, "beta": -1.0},
    {"M": 301, "N": 260, "K": 100, "alpha": 0.0},
)
"""In all four layouts, with every block shape."""
DEEP = (
    {"M": 65, "N": 70, "K": 5003},
    {"M": 300, "N": 900, "K": 1500, "lda": 1504, "ldb": 1504},
    {"M": 1100, "N": 1000, "K": 130, "trans": "TN"},
    {"M": 2100, "N": 2300, "K": 40, "trans": "TN"},
    {"M": 600, "N": 500, "K": 300, "limit": 300_000},
    {"M": 500, "N": 600, "K": 300, "trans": "TT", "limit": 300_000},
    {"M": 1200, "N": 2100, "K": 500, "trans": "TN", "beta": 0.5, "LINK": 5},
    {"M": 301, "N": 262, "K": 1003, "LINK": 2},
    {"M": 500, "N": 600, "K": 300, "trans": "NT", "alpha": 0.5, "beta": -1.0, "limit": 300_000, "LINK": 3},
)
"""Tiles cut along K, with as many parts as there can be; panels; and sums in chains of many links."""
DATA = ("normal", "inf", "-inf", "nan", "T2", "subnormal")
BIG = tuple(f"{n}:{trans}" for n in (4096, 6144, 8192, 16384) for trans in TRANSPOSES)
SHAPES = (
    *BIG, "512", "1000", "1024", "1536", "2048", "3000", "4095", "4096x4096x512", "65536x64x4096:TN", "64x65536x4096",
    "4095x4097x4099", "8192x8192x64",
)  # fmt: skip
ROUNDS, BURST = 5, 0.02


def problem_of(shape):
    return Gemm(**{k: v for k, v in shape.items() if k not in ("limit", "LINK")})


def named(text):
    """A product as it is asked for: ``8192:NN``, ``65536x64x4096``."""
    sizes, _, trans = text.partition(":")
    numbers = [int(n) for n in sizes.split("x")]
    return Gemm(*(numbers * 3 if len(numbers) == 1 else numbers), trans=trans or "NN")


def bits_of(plan, placed, problem):
    placed.reset()
    a, b, c = (placed.parts[n] for n in "ABC")
    plan.run(a, 0, b, 0, c, 0, problem.alpha, problem.beta)
    return placed.fetch().view(np.uint32).copy()


def check(session, shape, tile, name):
    """Return what is wrong with a case, as sentences."""
    problem = problem_of(shape)
    operands = hostile(problem, name)
    placed = OnDevice(operands, session)
    link = {"LINK": shape["LINK"]} if "LINK" in shape else {}
    plan = SgemmLaunches(session, problem.desc, tile, shape.get("limit", LIMIT), SPIN_LIMIT=SPIN, **link)
    first, second = (bits_of(plan, placed, problem) for _ in range(2))
    found = [] if np.array_equal(canonical(first), canonical(second)) else ["a second run gave other bits"]
    flags = np.empty(plan.units, np.uint32)
    session.download(plan.flags(int(session.queue)), flags)
    found += [] if not flags.any() else [f"flags are left: {np.flatnonzero(flags).tolist()}"]
    return [*found, *Oracle(operands).verify(first.view(np.float32)).problems]


def right(session, tiles=TILES):
    good, cases = True, 0
    part = cost.PART
    todo = [({**shape, "trans": t}, tile, "normal") for tile in tiles for shape in EDGES for t in TRANSPOSES if fits(shape, t)]
    todo += [(shape, tile, "integers") for tile in tiles for shape in DEEP]
    todo = [one for one in todo if not unfit(problem_of(one[0]).desc, one[1])]
    todo += [({"M": 200, "N": 330, "K": 150, "trans": t}, tiles[0], name) for name in DATA for t in ("NN", "TT")]
    for shape, tile, name in todo:
        cost.PART = -1.0 if name == "integers" else part  # as many parts as may be
        try:
            wrong = check(session, shape, tile, name)
        finally:
            cost.PART = part
        cases += 1
        if wrong:
            good = say(False, f"{tile.text} {shape} {name}", "; ".join(map(str, wrong))[:400])
            if cases > 20:
                break
    say(good, f"right: {cases} cases")
    return unaligned(session) & moved(session) & graph(session) & good


def fits(shape, trans):
    """True if the leading dimensions do, in a layout."""
    a, b = shape["M"] if trans[0] == "T" else shape["K"], shape["K"] if trans[1] == "T" else shape["N"]
    return a <= shape.get("lda", a) and b <= shape.get("ldb", b)


def integers(session, shape, seed, skip=0):
    """Small ones, so that products are exact, ``skip`` elements into memory of their own."""
    x = np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)
    buffer = session.allocate(x.nbytes + 64)
    session.upload(buffer, np.concatenate([np.full(skip, np.nan, np.float32), x.ravel()]))
    return x, buffer


def unaligned(session):
    """Operands and results that begin on 4 bytes."""
    good = True
    for skip_a, skip_b, skip_c in ((1, 0, 0), (0, 3, 0), (2, 1, 1), (0, 0, 3)):
        a, at_a = integers(session, (200, 136), 1, skip_a)  # K×M
        b, at_b = integers(session, (200, 264), 2, skip_b)
        out, found = session.allocate(4 * 136 * 264 + 64), np.empty((136, 264), np.float32)
        aligns = {"align_a": 1 if skip_a else 4, "align_b": 1 if skip_b else 4}
        plan = SgemmLaunches(session, GemmDesc(136, 264, 200, trans_a=True, **aligns), SPIN_LIMIT=SPIN)
        plan.run(at_a, skip_a, at_b, skip_b, out, skip_c, 1.0, 0.0)
        session.synchronize()
        session.download(session.foreign(out.pointer + 4 * skip_c, found.nbytes), found)
        good &= np.array_equal(found, a.T @ b)
    return say(good, "operands and results on 4 bytes")


def moved(session):
    """One plan, operands in many places in turn: tensor maps follow them."""
    plan, good = SgemmLaunches(session, Gemm(132, 260, 50, trans="TN").desc, SPIN_LIMIT=SPIN), True
    out, found = session.allocate(4 * 132 * 260), np.empty((132, 260), np.float32)
    kept = [(integers(session, (50, 132), i), integers(session, (50, 260), i + 100)) for i in range(70)]
    for i in (*range(70), 3, 3, 68):
        (a, at_a), (b, at_b) = kept[i]
        plan.run(at_a, 0, at_b, 0, out, 0, 1.0, 0.0)
        session.download(out, found)
        good &= np.array_equal(found, a.T @ b)
    return say(good, "operands in 70 places")


def graph(session):
    """Captured on another stream; what it reads changes between replays; tiles are cut."""
    from cuda.bindings import driver

    def checked(status, *rest):
        if status:
            raise RuntimeError(str(status))
        return rest[0] if rest else None

    good, other = True, session.branch()
    stream = other.queue
    plan = SgemmLaunches(session, Gemm(130, 300, 2000).desc, SPIN_LIMIT=SPIN)
    (_, at_a), (_, at_b) = integers(session, (130, 2000), 1), integers(session, (2000, 300), 2)
    out, found = session.allocate(4 * 130 * 300), np.empty((130, 300), np.float32)
    plan.reserve(stream)
    session.synchronize()
    with session.current():
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(*driver.cuStreamBeginCapture(stream, mode))
        plan.run(at_a, 0, at_b, 0, out, 0, 1.0, 0.0, stream)
        made = checked(*driver.cuStreamEndCapture(stream))
        ready = checked(*driver.cuGraphInstantiate(made, 0))
        for seed in (3, 5, 7):
            rng = np.random.default_rng(seed)
            a, b = (rng.integers(-8, 9, s).astype(np.float32) for s in ((130, 2000), (2000, 300)))
            session.upload(at_a, a)
            session.upload(at_b, b)
            for _ in range(2):
                session.upload(out, np.zeros(130 * 300, np.float32))
                checked(*driver.cuGraphLaunch(ready, stream))
                checked(*driver.cuStreamSynchronize(stream))
                session.download(out, found)
                good &= np.array_equal(found, a @ b)
    return say(good, "graph: three operands, two replays each")


AWAY = 1e-4
"""By how much two results may differ, times the root of K."""
GRADED = 32
"""Rows whose errors are stored, against float64: from the first to the last, of tiles that are cut and of others."""


class Compared(Set):
    """Operands on the device, and some rows of what was computed of them."""

    @property
    def rows(self):
        """Which."""
        return np.unique(np.linspace(0, self.problem.M - 1, GRADED).astype(int))

    def exact(self):
        """The rows of the product in float64, and the sums of the moduli."""
        p, found = self.problem, []
        for buffer, m in zip(self.buffers[:2], self.problem.matrices, strict=False):
            found.append(np.empty((m.rows, m.cols), np.float32))
            self.session.download(buffer, found[-1])
        a = (found[0].T if p.trans[0] == "T" else found[0])[self.rows].astype(np.float64)
        b = found[1].T if p.trans[1] == "T" else found[1]
        sums = [np.zeros((len(a), p.N)) for _ in range(2)]
        for k in range(0, p.K, 2048):
            part, of = a[:, k : k + 2048], b[k : k + 2048].astype(np.float64)
            sums[0] += part @ of
            sums[1] += np.abs(part) @ np.abs(of)
        return sums

    def spoil(self):
        """NaN, so that nothing is taken for what another has computed."""
        p = self.problem
        self.session.upload(self.buffers[2], np.full((p.M, p.N), np.nan, np.float32))

    def result(self):
        """The rows of C."""
        p = self.problem
        found = np.empty((p.M, p.N), np.float32)
        self.session.download(self.buffers[2], found)
        return found[self.rows]


def errors(result, exact):
    """A row's figures: the grade ratio and the Frobenius error of these rows."""
    want, moduli = exact
    away = result - want
    grade = np.max(np.abs(away) / (2.0**-24 * moduli))
    return {"grade": float(grade), "frobenius": float(np.linalg.norm(away) / np.linalg.norm(want))}


def sample(session, run, calls, meter):
    """Seconds of a call, joules of it and MHz near its end."""
    before = meter.joules() if meter else 0.0
    seconds = timed(session, run, calls)
    clock = session.clock_mhz() if meter else None
    return {"seconds": seconds, "mhz": clock, "joules": (meter.joules() - before) / calls if meter else None}


def launches(plan, one):
    """Each launch of a plan on a set."""
    (step,), (a, b, c) = plan.steps(), one.addresses
    found = {"lay": lambda: step.lay_only(a, b, 1.0, None)} if plan.launches > 1 else {}
    return found | {"product": lambda: step.multiply_only(a, b, c, 1.0, 0.0, None)}


def compare(session, fill, text, every, controls, sustained, meter):
    """Medians of block shapes and of cuBLAS, in turns; ``controls``: macros with which the chosen one is compiled once more."""
    problem = named(text)
    desc, units = problem.desc, session.device.compute_units
    sets = [Compared(session, fill, problem, i) for i in range(2)]
    chosen, turn = select_variant(desc, units), [0]
    variants = [(chosen, {}), *((v, {}) for v in VARIANTS if every and v != chosen and not unfit(desc, v))]
    variants += [(chosen, macros) for macros in controls]
    plans, vendors = [SgemmLaunches(session, desc, v, **macros) for v, macros in variants], [s.vendor() for s in sets]

    def ours(plan):
        def run():
            turn[0] ^= 1
            a, b, c = sets[turn[0]].addresses
            plan.run(a, 0, b, 0, c, 0, 1.0, 0.0)

        return run

    def theirs():
        turn[0] ^= 1
        vendors[turn[0]]()

    runs = [theirs, *map(ours, plans)]
    sets[0].spoil()
    vendors[0]()
    session.synchronize()
    want, limit, exact = sets[0].result(), AWAY * problem.K**0.5, sets[0].exact()
    graded = [errors(want, exact)]
    for plan in plans:
        a, b, c = sets[0].addresses
        sets[0].spoil()
        plan.run(a, 0, b, 0, c, 0, 1.0, 0.0)
        session.synchronize()
        found = sets[0].result()
        if not (away := float(np.max(np.abs(found - want)))) < limit:
            raise RuntimeError(f"{plan.variant.text}: {away} from cuBLAS's result")
        graded.append(errors(found, exact))
    calls = []
    for run in runs:
        run()
        session.synchronize()
        calls.append(max(2, min(20000 if sustained else 100, int((sustained or BURST) / timed(session, run, 2)))))
    samples = [[] for _ in runs]
    for _ in range(ROUNDS):
        for i, run in enumerate(runs):
            samples[i].append(sample(session, run, calls[i], meter if sustained else None))
    rows = []
    for (variant, macros), plan, some, far in zip(((None, {}), *variants), (None, *plans), samples, graded, strict=True):
        name = " ".join((variant.text, *(f"{k}={v}" for k, v in macros.items()))) if variant else "cublas"
        row = {"name": name, "chosen": (variant, macros) == (chosen, {}), "samples": some} | far
        row |= {k: float(np.median([s[k] for s in some])) for k in ("seconds", "mhz", "joules") if some[0][k] is not None}
        if plan is not None:
            row["schedule"] = [list(step.schedule) for step in plan.steps()]
            alone = launches(plan, sets[0]) if len(plan.panels) == 1 else {}
            row["alone"] = {k: float(np.median([timed(session, f, min(calls[1], 20)) for _ in range(3)])) for k, f in alone.items()}
            row["reckoned"], row["workspace_bytes"] = predicted(desc, units, variant), plan.workspace_bytes
        rows.append(row)
    return {"problem": problem.describe(), "name": text, "flops": problem.flops, "rows": rows}


def short(name):
    """A variant's block shape, and the macros of a control."""
    shape, *rest = name.split()
    return ",".join([shape, *(word for word in rest if "=" in word)])


def macros(text):
    """``A=1,B=2`` as a dictionary."""
    return {name: int(value) for name, value in (pair.split("=") for pair in text.split(","))}


def line(found):
    theirs, own, *others = found["rows"]
    flops = found["flops"]

    def power(row):
        if "joules" not in row:
            return ""
        return f" {row['joules'] / row['seconds']:.0f}W {row['mhz']:.0f}MHz {row['joules'] / flops * 1e12:.2f}pJ"

    far = "/".join(f"{row['frobenius']:.2e}" for row in (own, theirs))
    alone = "+".join(f"{v * 1e6:.0f}" for v in own["alone"].values())
    more = " ".join(f"{short(r['name'])}:{theirs['seconds'] / r['seconds']:.3f} {r['frobenius']:.2e}" for r in others)
    return (
        f"{found['name']:17} cuBLAS {theirs['seconds'] * 1e6:8.0f} us {flops / theirs['seconds'] / 1e12:5.1f} TF{power(theirs)} | "
        f"{own['name']:24} {own['seconds'] * 1e6:8.0f} us {flops / own['seconds'] / 1e12:5.1f} TF{power(own)} "
        f"{theirs['seconds'] / own['seconds']:.3f} {far} ({alone}, predicted {own['reckoned'] * 1e6:.0f}) {more}"
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--parts", default="right,time")
    arguments.add_argument("--shapes", default=",".join(SHAPES))
    arguments.add_argument("--variants", choices=("all", "chosen"), default="chosen")
    arguments.add_argument("--cases", choices=("all", "few"), default="all")
    arguments.add_argument("--macros", action="append", type=macros, default=[])
    arguments.add_argument("--sustained", type=float, default=0.0)
    arguments.add_argument("--limit", type=float, default=170)
    asked = arguments.parse_args()
    device = next((d for d in backends.devices() if d.backend == "cuda"), None)
    if device is None:
        raise SystemExit("no CUDA device: " + " ".join(backends.advice()))
    if reason := supported(device, Gemm(128, 128, 128).desc):
        raise SystemExit(reason)
    asked.out.mkdir(parents=True, exist_ok=True)
    start, wanted, good = time.monotonic(), asked.parts.split(","), True
    report, lines, failures = [], [], []
    meter = Meter(device)
    with backends.opened(device) as session:
        fill = source_kernel(Source("benchmarks/fill", FILL, "fill", {}, "cuda"), session)
        if "right" in wanted:
            try:
                good = right(session, TILES if asked.cases == "all" else TILES[:1])
            except Exception as error:
                good = say(False, "right", f"{type(error).__name__}: {str(error)[-600:]}")
            print(f"# {time.monotonic() - start:.0f} s", flush=True)
        for text in asked.shapes.split(",") if "time" in wanted and good else ():
            if time.monotonic() - start > asked.limit:
                failures.append(f"{text}: no time left")
                continue
            try:
                counted = None if meter.absent else meter
                report.append(compare(session, fill, text, asked.variants == "all", asked.macros, asked.sustained, counted))
                lines.append(line(report[-1]))
            except Exception as error:
                failures.append(f"{text}: {type(error).__name__}: {str(error)[-400:]}")
            results.write(
                asked.out / "hopper-fp32.json",
                results.record(
                    shlex.join(["python", "benchmarks/hopper_fp32.py", *sys.argv[1:]]), environment(session), [], failures,
                    kind="hopper-fp32", right=good, shapes=report, sustained=asked.sustained,
                    constants={n: getattr(cost, n) for n in ("RATE", "START", "TILE", "PART", "LAY_RATE", "LAY_START")},
                ),
            )  # fmt: skip
    print("\n".join([*lines, *(f"FAILED {f}" for f in failures), f"# {time.monotonic() - start:.0f} s"]))
    return 0 if good and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
