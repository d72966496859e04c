"""Times of tiles from the whole space of the tunable block kernel: a fair sample, for the model that ranks them (bounds/rank.py).

    python benchmarks/rank.py results/nvidia-h200/rank.json
    python benchmarks/rank.py rank.json --problems 96x80x112 --count 6 --device opencl
    python benchmarks/rank.py code.json --compile-only sm_90 --count 20
    python benchmarks/rank.py results/nvidia-h200/rank.json --describe-again

The sample is drawn by a fixed seed from everything that is legal, whatever it makes of registers: what spills stays in. Everything
is compiled beforehand by all cores, and what the compiler made of it is stored with it. The float64 oracle checks every result
before its tile is timed. What does not compile, does not run or computes something wrong is stored as such. The record is written
every few seconds.

``--describe-again`` is for a record from before something was counted in machine code that is counted now. Its tiles are compiled
once more, without a GPU, and described as they would be today; whatever else was described of them must be what it was.
"""

import argparse
import os
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from toprung import backends
from toprung.backends import nvrtc
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate
from toprung.errors import MissingExtra, ToprungError
from toprung.kernels.blocks import fitted
from toprung.kernels.build import keep
from toprung.kernels.registry import family
from toprung.kernels.tiled.family import configuration
from toprung.kernels.tiled.record import RECORD
from toprung.lab.harness import environment, results
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.measure import SamplingPlan
from toprung.lab.sass.machine_code import read
from toprung.oracle.gemm import Gemm
from toprung.store.entry import scatter
from toprung.tile import Tile
from toprung.tune.measure import WHOLE, Trialled

TILED = family("tiled")
PROBLEMS = ("1000", "4096")
SEED, COUNT = 20260, 200
PLAN = ComparisonPlan(samples={"warm": 5}, sampling={"warm": SamplingPlan(sample_seconds=0.006)}, tolerates=(ToprungError,))
SLOW, SLOW_SAMPLES = 0.02, 2
"""Seconds from which a call gets fewer samples, and their number."""
STORE_EVERY = 15.0


def parse(text):
    """``4096``, ``96x80x112``."""
    numbers = [int(n) for n in text.split("x")]
    return Gemm(*(numbers * 3 if len(numbers) == 1 else numbers))


def draws(device, desc, seed):
    """Yield legal points of the space, each as likely as any other and none twice; the seed and the device decide which.

    The order does not end: a space that is small would be drawn from for ever once it is used up.
    """
    rng, seen = random.Random(seed), set()
    while True:
        tile = Tile(**{name: rng.choice(values) for name, values in RECORD.space.items()})
        switches = {s.name: rng.choice(s.values) for s in RECORD.switches if s.searched}
        if RECORD.allows(fitted(desc, tile), (), device) and (found := configuration(device, desc, tile, switches)) not in seen:
            seen.add(found)
            yield found


def code_key(config):
    """Return what a binary depends on: the number of slices is the launch's affair."""
    return replace(config.tile, SPLIT_K=None), config.options


def compile_one(job):
    """In a process of its own: one binary, into the cache if there is a fingerprint; its code's description, seconds, complaint."""
    source, arch, fingerprint = job
    start = time.perf_counter()
    try:
        cubin = nvrtc.compile_cubin(source, arch)
        seconds = time.perf_counter() - start
        if fingerprint:
            keep(source, fingerprint, cubin.code)
        return read(cubin, source.symbol, arch).describe(), seconds, ""
    except MissingExtra:  # no disassembler
        return None, seconds, ""
    except ToprungError as error:
        return None, time.perf_counter() - start, str(error)[:300]


def compile_all(device, configs, workers, fingerprint=""):
    """Every different binary: its description, seconds and complaint. The slowest are begun first."""

    def most(config):
        return -(config.tile.TM * config.tile.TN * config.tile.BK)

    keys = list(dict.fromkeys(code_key(c) for c in sorted(configs, key=most)))
    first = {code_key(c): c for c in configs}
    jobs = [(TILED.source(device, first[k]), device.arch, fingerprint) for k in keys]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return dict(zip(keys, pool.map(compile_one, jobs, chunksize=1), strict=True))


def timed(at, candidate):
    """Return samples of a candidate on a placed problem, its clocks, and what keeps it from being timed."""
    row = Row(Trialled(candidate))
    for _ in compare(at, [row], PLAN):
        if row.state == "timing" and row.timing and len(row.timing.seconds) >= SLOW_SAMPLES and row.timing.seconds[-1] > SLOW:
            row.state = "dropped"
    wrong = "; ".join(row.verdict.problems) if row.verdict else row.note
    m = row.measurement
    if m is None:
        return {"seconds": [], "clocks_mhz": [], "problem": (wrong or row.note)[:300]}
    return {"seconds": list(m.seconds), "clocks_mhz": list(m.clocks_mhz), "problem": "", "calls": m.calls}


def describe(config, code):
    """A configuration and what the compiler made of it, as JSON."""
    made, seconds, complaint = code
    return {**config.encode(), "code": made, "compile_seconds": seconds, "problem": complaint}


def same(old, new):
    """Return True if all that was described is described now, and as it was."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(same(value, new.get(name)) for name, value in old.items())
    return old == new


def describe_again(path, workers):
    """Compile the tiles of a record anew and replace what it says of their code."""
    record = results.read(path)
    device = nvrtc.device_of(record["environment"]["device"]["arch"])
    rows = [row for entry in record["problems"] for row in entry["tiles"] if row["code"]]
    configs = [TILED.config.decode(row["tile"], row["options"]) for row in rows]
    codes = compile_all(device, configs, workers)
    for row, config in zip(rows, configs, strict=True):
        code, _, complaint = codes[code_key(config)]
        if not same(row["code"], code):
            sys.exit(f"{config}: the compiler here makes something else of it: {complaint or 'other counts'}")
        row["code"] = code
    record["described"] = {k: v for k, v in environment.environment(device).items() if k in ("date", "commit")}
    results.write(path, record)
    print(f"{len(codes)} binaries, {len(rows)} tiles described again")


def table(problems):
    """The fastest and the slowest, and what was not timed."""
    for entry in problems:
        timed = sorted((t for t in entry["tiles"] if t["seconds"]), key=lambda t: statistics.median(t["seconds"]))
        failed = [t for t in entry["tiles"] if t["problem"]]
        flops = entry["flops"]
        spilled = sum(bool(t["code"] and (t["code"]["spill_loads"] or t["code"]["stack_bytes"])) for t in timed)
        spread = [scatter(t["seconds"]) for t in timed]
        print(f"\n{entry['problem']['M']}x{entry['problem']['N']}x{entry['problem']['K']}: {len(timed)} timed ({spilled} spill), "
              f"{len(failed)} not, spread {statistics.median(spread) if spread else 0:.1%} in the median")  # fmt: skip
        for t in [*timed[:6], *timed[-2:]]:
            seconds = statistics.median(t["seconds"])
            tile = " ".join(f"{k}{v}" for k, v in t["tile"].items() if k not in ("VA", "VB"))
            switches = " ".join(f"{k}{t['options'][k]}" for k in ("AHEAD", "ORDER", "RESIDENT", "GROUP_M"))
            registers = t["code"]["registers"] if t["code"] else "?"
            print(f"  {1e6 * seconds:9.1f} µs {flops / seconds / 1e12:6.2f} TFLOP/s {registers:>4} registers  {tile} {switches}")
        if entry["own"]["seconds"]:
            print(f"  {1e6 * statistics.median(entry['own']['seconds']):9.1f} µs: the library's own selection")
        for t in failed[:4]:
            print("  not timed:", t["problem"][:150].replace("\n", " "))


def main():
    """Draw, compile, check, time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=110.0, help="most that the whole run may take")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--describe-again", action="store_true", help="time nothing: describe the code of a record's tiles anew")
    parser.add_argument("--compile-only", metavar="ARCH", help="time nothing: what the compiler makes of the sample, without a GPU")
    wanted = parser.parse_args()
    start = time.monotonic()
    what = results.command("python benchmarks/rank.py")
    problems = [parse(p) for p in wanted.problems]
    if wanted.describe_again:
        describe_again(wanted.out, wanted.workers)
        return
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    if wanted.compile_only:
        device = nvrtc.device_of(wanted.compile_only)
        configs = list(islice(draws(device, problems[0].desc, wanted.seed), wanted.count))
        codes = compile_all(device, configs, wanted.workers)
        took = [seconds for _, seconds, _ in codes.values()]
        rows = [describe(c, codes[code_key(c)]) for c in configs]
        results.write(wanted.out, {"format": "toprung compiled 1", "arch": device.arch, "seed": wanted.seed, "tiles": rows})
        print(
            f"{len(codes)} binaries in {time.monotonic() - start:.0f} s, {sum(took):.0f} s of one core, longest {max(took):.1f} s"
        )
        return
    device = backends.find(wanted.device)
    with backends.opened(device) as session:
        samples = [list(islice(draws(device, p.desc, wanted.seed), wanted.count)) for p in problems]
        codes = {}
        if device.backend == "cuda":
            codes = compile_all(device, [c for s in samples for c in s], wanted.workers, session.fingerprint())
            print(f"{len(codes)} binaries after {time.monotonic() - start:.0f} s", flush=True)
        made = []
        stored = time.monotonic()

        def store(interrupted):
            record = results.record(
                what, environment.environment(session), [], interrupted=interrupted, kind="rank", seed=wanted.seed, problems=made
            )  # fmt: skip
            results.write(wanted.out, record)

        for number, (problem, configs) in enumerate(zip(problems, samples, strict=True)):
            at, rows = PlacedProblem(problem, session, whole=WHOLE), []
            own = select(device, problem.desc).candidate
            made.append({"problem": problem.describe(), "flops": problem.flops, "tiles": rows})
            made[-1]["own"] = describe(own.config, (None, 0.0, "")) | timed(at, own)  # for comparison, not of the sample
            end = time.monotonic() + (start + wanted.seconds - time.monotonic()) * (0.35 if number + 1 < len(problems) else 1.0)
            for config in configs:
                if time.monotonic() > end:
                    print(f"{problem}: out of time, {len(configs) - len(rows)} not tried")
                    break
                row = describe(config, codes.get(code_key(config), (None, 0.0, "")))
                rows.append(
                    row | timed(at, Candidate(TILED, config)) if not row["problem"] else row | {"seconds": [], "clocks_mhz": []}
                )
                if time.monotonic() - stored > STORE_EVERY:
                    store(True)
                    stored = time.monotonic()
            print(f"{problem}: {len(rows)} tried after {time.monotonic() - start:.0f} s", flush=True)
        store(False)
        table(made)


if __name__ == "__main__":
    main()
