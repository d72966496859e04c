"""Times of the library's kernels by tile: many of them on a few problems, beside cuBLAS, for the tables in kernels/blocks.py and
kernels/skinny_model.py.

    python benchmarks/tiles.py results/nvidia-h200/tiles.json --seconds 290
    python benchmarks/tiles.py tiles.json --problems 1024 4096:TT 128x128x65536 64x64x64*10000 --device cuda

For each problem: every block shape with a few numbers of slices first, then variants (stages, order, registers, reading ahead,
rasterisation) of the fastest shapes; the best few are timed again in turns with the vendor's library (A B A B ...). The float64
oracle checks the result of each before it is timed. Binaries are compiled beforehand by all cores. Problems share the time; each is
stored as it is done.
"""

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from toprung import backends
from toprung.dispatch.ranking import ranked
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate
from toprung.errors import ToprungError
from toprung.gemm.classes import is_skinny
from toprung.kernels.base import TileConfig, candidates
from toprung.kernels.blocks import BLOCKS, Block, split_k_factors
from toprung.kernels.registry import family
from toprung.kernels.skinny.record import RECORDS
from toprung.kernels.skinny_model import block_count, iteration_depth
from toprung.kernels.split_k import whole_slices, with_slices
from toprung.kernels.tiled.family import configured
from toprung.kernels.tiled.record import RECORD
from toprung.lab.baselines import vendor
from toprung.lab.harness import environment, results
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.measure import SamplingPlan
from toprung.lab.harness.stats import paired_ratio
from toprung.oracle.gemm import Gemm
from toprung.tile import Tile, broken
from toprung.tune.compiler import compile_one
from toprung.tune.measure import WHOLE, Trialled

TILED, SKINNY = family("tiled"), family("skinny")
PROBLEMS = (
    "256", "512", "1024", "2048", "4096", "4096:NT", "4096:TN", "4096:TT", "1000", "4095x4097x4099", "128x128x65536",
    "256x256x131072", "16384x64x4096", "64x16384x4096", "4096x4096x64", "64x64x64*2500", "256x256x256*200", "16x4096x4096",
    "1x8192x8192", "1x8192x8192:NT",
)  # fmt: skip
SHAPES = (  # block, warp, work-item
    (128, 128, 8, 32, 64, 8, 8), (128, 128, 8, 64, 32, 8, 8), (128, 128, 16, 32, 64, 8, 8), (128, 256, 8, 64, 64, 8, 16),
    (256, 128, 8, 64, 64, 16, 8), (128, 64, 8, 32, 64, 8, 8), (128, 64, 16, 32, 64, 8, 8), (64, 128, 8, 32, 64, 8, 8),
    (64, 128, 16, 32, 64, 8, 8), (64, 64, 8, 32, 64, 8, 8), (64, 64, 16, 32, 32, 8, 4), (64, 64, 16, 32, 32, 4, 8),
    (64, 64, 16, 16, 32, 4, 4), (128, 32, 16, 32, 32, 8, 4), (32, 128, 16, 32, 32, 4, 8), (64, 32, 16, 16, 32, 4, 4),
    (32, 64, 16, 16, 32, 4, 4), (32, 64, 32, 16, 32, 4, 4), (32, 32, 16, 16, 32, 4, 4), (32, 32, 32, 16, 32, 4, 4),
    (64, 64, 32, 32, 32, 8, 4), (32, 32, 16, 16, 16, 2, 4),
)  # fmt: skip
SHOWN = ("ORDER", "AHEAD", "RESIDENT", "GROUP_M", "VC", "SMALL")
QUICK = ComparisonPlan(samples={"warm": 3}, sampling={"warm": SamplingPlan(sample_seconds=0.002)}, tolerates=(ToprungError,))
GOOD = ComparisonPlan(samples={"warm": 7}, sampling={"warm": SamplingPlan(sample_seconds=0.01)})
SHORTLIST, FINALISTS = 3, 4


def parse(text):
    """``4096``, ``64x65536x4096:TT``, ``64x64x64*10000``."""
    size, _, trans = text.partition(":")
    size, _, batch = size.partition("*")
    numbers = [int(n) for n in size.split("x")] * (3 if "x" not in size else 1)
    return Gemm(*numbers, trans=trans or "NN", batch=int(batch or 1))


def pack(desc, block, device, slices):
    """A block as a candidate."""
    return Candidate(TILED, configured(device, desc, block, slices))


def weighed(device, desc):
    """The blocks that selection weighs, in one slice."""
    if device.kind == "gpu":
        return [Candidate(TILED, config) for config in candidates(TILED, device, desc) if config.slices == 1]
    a, b, _ = desc.widths
    tiles = (replace(tile, VA=a, VB=b) for tile in RECORD.tiles["cpu"])
    return [pack(desc, Block(tile, 1.0, ahead=0), device, 1) for tile in tiles if RECORD.allows(tile, (), device)]


def shapes(device, desc):
    """Every block shape, with numbers of slices that fill the device about a half, once and twice."""
    a, b, _ = desc.widths
    known = {replace(c.tile, VA=4, VB=4): c for c in BLOCKS}
    found = weighed(device, desc)
    for bm, bn, bk, wm, wn, tm, tn in SHAPES:
        for stages in (1, 2):
            tile = Tile(BM=bm, BN=bn, BK=bk, WM=wm, WN=wn, TM=tm, TN=tn, VEC=4, VA=4, VB=4, STAGES=stages, PADA=4, PADB=4)
            one = known.get(tile, Block(tile, 1.0))
            one = replace(one, tile=replace(tile, VA=a, VB=b))
            if broken(RECORD.all_rules({}), one.tile, device):
                continue
            found += [pack(desc, one, device, s) for s in split_k_factors(desc, one.tile, device.compute_units)]
    return list(dict.fromkeys(found))


def variants(device, config):
    """Everything else about one block shape."""
    found = []
    for stages in (1, 2):
        tile = replace(config.tile, STAGES=stages)
        if broken(RECORD.all_rules({}), tile, device):
            continue
        most = 65536 // (128 * tile.work_items)
        for changed in (
            {"ORDER": 1}, {"AHEAD": 0}, {"RESIDENT": 0}, {"RESIDENT": most}, {"RESIDENT": min(8, most + 1)}, {"GROUP_M": 1},
            {"GROUP_M": 4}, {"GROUP_M": 16}, {"ORDER": 1, "RESIDENT": most}, {},
        ):  # fmt: skip
            if changed.get("RESIDENT", 0) in (0, 1, 2, 3, 4, 5, 6, 8):
                found.append(Candidate(TILED, TileConfig(tile, tuple(sorted((dict(config.options) | changed).items())))))
    return list(dict.fromkeys(found))


def skinny(device, desc, own):
    """Teams, rows and slices of a product with a short side, around what is selected, or the best such kernel by the model."""
    s, found = desc.skinny, [own]
    usual = own if own.family is SKINNY else next(p.candidate for p in ranked(device, desc) if p.candidate.family is SKINNY)
    config = usual.config
    for items in (64, 128, 256, 512):
        for n in (1, 2, 4, 8):
            if config.kernel == "rows":
                wide = config.tile.VEC
                tile = replace(config.tile, BM=items // 32 * n, TM=n, BN=32 * wide, TN=wide)
            else:
                tile = replace(config.tile, BN=items // 32 * 16, TN=16, KU=n)
            tile = replace(tile, SPLIT_K=None)
            if broken(RECORDS[config.kernel].all_rules(dict(config.options)), tile, device):
                continue
            blocks, piece = block_count(s, tile), iteration_depth(tile)
            wanted = {max(1, round(device.compute_units * waves / blocks)) for waves in (2, 4, 8, 16)}
            for slices in {whole_slices(s.depth, piece, w) for w in wanted if w <= max(1, s.depth // piece)}:
                found.append(Candidate(SKINNY, replace(config, tile=with_slices(tile, slices))))
    return list(dict.fromkeys(found))


def compile_all(pool, session, candidates):
    """Binaries of all candidates; nothing to do where the session's backend is not CUDA."""
    if session.device.backend != "cuda":
        return
    device = session.device
    made = filter(None, (c.family.source(device, c.config) for c in candidates))
    sources = {(s.name, s.kernel, s.text, tuple(s.defines.items())): s for s in made}.values()
    many = len(sources)
    for wrong in filter(None, pool.map(compile_one, sources, [device.arch] * many, [session.fingerprint()] * many, chunksize=1)):
        print("does not compile:", wrong[:300])


class Trial:
    """One problem with its operands in place."""

    def __init__(self, session, problem):
        self.session, self.problem, self.desc = session, problem, problem.desc
        self.at, self.checked = PlacedProblem(problem, session, whole=WHOLE), 0

    def quick(self, candidates, end):
        """Return the best of three short samples of each, fastest first; of as many as there is time for."""
        found = []
        for number, candidate in enumerate(candidates):
            if time.monotonic() > end:
                print(f"  out of time: {len(candidates) - number} not tried")
                break
            row = Row(Trialled(candidate))
            for _ in compare(self.at, [row], QUICK):
                pass
            if row.measurement is None:
                print("WRONG:" if row.state == "wrong" else "refused:", candidate, row.note[:200])
                continue
            self.checked += 1
            found.append((row.measurement.best, candidate))
        return sorted(found, key=lambda f: f[0])

    def final(self, candidates):
        """In turns with the vendor's library, which comes first."""
        peer, reason = vendor(self.session.device, "gemm")
        if peer is None:
            print("  no vendor library:", reason)
        rows = GOOD.rows([*([peer] if peer else []), *map(Trialled, candidates)])
        for _ in compare(self.at, rows, GOOD):
            pass
        for row in rows:
            if row.failed:
                print("WRONG:", row.who.name, row.note)
        names = ["vendor"] * bool(peer) + list(candidates)
        return [(name, row.measurement) for name, row in zip(names, rows, strict=True) if row.measurement]


def study(session, pool, problem, end):
    """One problem; returns its entry in the record."""
    trial, device = Trial(session, problem), session.device
    own = select(device, trial.desc).candidate
    if is_skinny(trial.desc):
        first = skinny(device, trial.desc, own)
        compile_all(pool, session, first)
        quick = trial.quick(first, end)
    else:
        first = list(dict.fromkeys([own, *shapes(device, trial.desc)]))
        compile_all(pool, session, first)
        start = time.monotonic()
        quick = trial.quick(first, start + 0.6 * (end - start))
        best = []
        for config in (c.config for _, c in quick if c.family is TILED):
            if all(replace(config.tile, STAGES=1) != replace(b.tile, STAGES=1) for b in best):
                best.append(config)
        second = [v for c in best[:SHORTLIST] for v in variants(device, c) if v not in first]
        compile_all(pool, session, second)
        quick = sorted(quick + trial.quick(second, end), key=lambda f: f[0])
    finalists = list(dict.fromkeys([*(c for _, c in quick[:FINALISTS]), own]))
    timings = trial.final(finalists)
    base = timings[0][1] if timings and timings[0][0] == "vendor" else None
    rows = []
    print(f"\n{problem}  {trial.checked} right, {len(quick)} timed")
    for who, timing in timings:
        seconds = float(np.median(timing.seconds))
        ratio = paired_ratio(base.seconds, timing.seconds) if base and timing is not base else None
        name = who
        if who != "vendor":
            name = f"{who} " + " ".join(f"{k}{v}" for k, v in who.encode()["options"].items() if k in SHOWN)
        mark = "  <- the model's" if who == own else ""
        times = f"{ratio.value:.3f}" if ratio else ""
        print(f"  {seconds * 1e6:10.1f} µs {problem.flops / seconds / 1e12:6.2f} TFLOP/s {times:>6}  {name}{mark}")
        rows.append({"who": who if who == "vendor" else who.encode(), "seconds": timing.seconds, "model": who == own})
    return {
        "problem": problem.describe(), "final": rows,
        "quick": [{"seconds": s, **c.encode()} for s, c in quick],
    }  # fmt: skip


def main():
    """Problems share the time; the record is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=290.0)
    wanted = parser.parse_args()
    device = backends.find(wanted.device)
    problems = [parse(p) for p in wanted.problems]
    end = time.monotonic() + wanted.seconds
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    with backends.opened(device) as session, ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        what = results.command("python benchmarks/tiles.py")
        made = []
        for number, problem in enumerate(problems):
            now = time.monotonic()
            if now > end:
                print("out of time:", *problems[number:])
                break
            made.append(study(session, pool, problem, now + (end - now) / (len(problems) - number)))
            results.write(wanted.out, results.record(what, environment.environment(session), [], kind="tiles", problems=made))


if __name__ == "__main__":
    main()
