"""What else a call could have run: cuBLAS and many choices of ours on drawn shapes, for the rules in blas/choose.py.

    python benchmarks/routes.py results/nvidia-h200/routes.json --seconds 200
    python benchmarks/routes.py routes.json --device pocl --shapes 5 --seed 3

Shapes are drawn as ``toprung tune --check`` draws them, from another seed. For each: the model's choice, cuBLAS, the tiles that
the model finds best (of its table and of ``MORE``, each with its slices and some with others), a few tiles by chance, so that the
model is not asked alone, Hopper's kernel, and for short sides and vectors teams and slices around the chosen ones. The tuner's
worker verifies each before it is timed in turns with the others; binaries are compiled by the other cores meanwhile. The record
is written every few seconds. ``benchmarks/fit_routes.py`` fits the model to it.
"""

import argparse
import random
import shlex
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from toprung import backends, environment, hopper_fp32, results
from toprung.blas.call import GemmCall, widths
from toprung.blas.choice import Candidate, Choice
from toprung.blas.choose import by_model, lacking
from toprung.blas.ffma import FFMA_LEAST, ffma_choice
from toprung.blas.kernel import kernel
from toprung.blas.problems import call_of, class_of
from toprung.blas.short import FEW, MOST_SLICES, Skinny, skinny_widths, turn
from toprung.blas.slices import whole_slices
from toprung.blas.tiles import GPU, clocks, slicings, tiled_options
from toprung.blas.tunables.rows import few, sliced_choice
from toprung.errors import ToprungError
from toprung.tile import Tile, broken
from toprung.tune.compiler import Compiler, cores
from toprung.tune.executors.local import LocalLane
from toprung.tune.shapes import drawn
from toprung.tune.trial import Trial, describe, plain

SEED, SHAPES = 11, 320
MORE = (  # block, warp, work-item, stages
    (16, 16, 16, 8, 16, 2, 2, 2), (16, 16, 32, 8, 16, 2, 2, 2), (16, 32, 16, 8, 16, 2, 2, 2), (16, 32, 32, 8, 16, 2, 2, 2),
    (32, 16, 16, 16, 8, 2, 2, 2), (32, 16, 32, 16, 8, 2, 2, 2), (32, 32, 16, 16, 16, 2, 4, 2), (32, 32, 32, 16, 16, 2, 4, 2),
    (32, 32, 16, 16, 32, 4, 4, 2), (32, 64, 8, 32, 16, 2, 8, 2), (32, 64, 16, 16, 32, 4, 4, 2), (64, 32, 16, 64, 16, 4, 8, 1),
    (64, 32, 8, 16, 32, 4, 4, 2), (64, 64, 8, 16, 32, 4, 4, 2), (64, 64, 32, 32, 32, 8, 4, 1), (64, 64, 8, 32, 64, 8, 8, 1),
    (128, 32, 16, 32, 32, 8, 4, 2), (32, 128, 16, 32, 32, 4, 8, 2), (128, 16, 16, 32, 16, 4, 4, 2), (16, 128, 16, 16, 32, 4, 4, 2),
    (128, 128, 16, 32, 64, 8, 8, 1), (64, 64, 4, 32, 32, 4, 8, 2), (64, 64, 16, 64, 32, 8, 8, 2),
    # what the search's order put ahead of the table's in checks
    (32, 64, 16, 32, 64, 16, 4, 2), (16, 128, 16, 16, 128, 16, 4, 2), (64, 32, 16, 64, 8, 4, 4, 2), (32, 32, 32, 32, 8, 2, 4, 2),
    (32, 64, 16, 16, 64, 8, 4, 2), (64, 64, 8, 64, 16, 4, 8, 2), (32, 128, 16, 16, 128, 8, 8, 2), (64, 128, 16, 32, 128, 16, 8, 2),
    (32, 256, 16, 16, 128, 8, 8, 2), (256, 16, 16, 128, 16, 8, 8, 2), (16, 128, 16, 16, 64, 8, 4, 1), (32, 32, 16, 32, 8, 2, 4, 2),
    (128, 64, 8, 128, 16, 8, 8, 2), (32, 16, 32, 32, 8, 2, 4, 2), (64, 16, 16, 64, 8, 4, 4, 2), (128, 32, 8, 128, 16, 8, 8, 2),
)  # fmt: skip
BEST, OTHER_SLICES, CHANCE, MOST = 12, 3, 3, 22
FAR = 2.0
"""What the model finds so many times as slow as its best is left to chance."""
LARGEST = 60_000_000
"""Elements of an operand: larger ones take longer to make than to measure."""
TURNS, SAMPLE_SECONDS, HOPELESS = 5, 0.002, 1.5
AHEAD, STORE_EVERY = 40, 15.0


def more():
    """``MORE`` as candidates, with efficiencies guessed from their area: for the order alone."""
    known = {replace(c.tile, STAGES=1) for c in GPU}
    for bm, bn, bk, wm, wn, tm, tn, stages in MORE:
        tile = Tile(BM=bm, BN=bn, BK=bk, WM=wm, WN=wn, TM=tm, TN=tn, VEC=min(4, tn), VA=4, VB=4, STAGES=stages, PADA=4, PADB=4)
        if replace(tile, STAGES=1) not in known:
            guess = min(0.7, 0.39 * (bm * bn / 1024) ** 0.33)
            resident = max(2, min(16, 2048 // tile.work_items, 98304 // (bm * bn * 2)))
            yield Candidate(tile, guess, resident)


def legal(device, call):
    """Every candidate that is, with accesses as wide as operands and tile allow."""
    a, b, _ = widths(call)
    rules = kernel("gemm").all_rules({})
    for one in (*GPU, *more()):
        for va, vb in sorted({(x, y) for x in (1, 2, 4) for y in (1, 2, 4) if x <= a and y <= b}, reverse=True):
            tile = replace(one.tile, VA=va, VB=vb)
            if not broken(rules, tile, device):
                yield replace(one, tile=tile)
                break


def tiled(device, call, one, slices):
    """A candidate as a choice."""
    options = tiled_options(call, one, device, slices)
    return Choice("gemm", replace(one.tile, SPLIT_K=slices if slices > 1 else None), tuple(sorted(options.items())))


def products(device, call, rng, best):
    """Tiles and slices, the model's order first."""
    units, found, each = device.compute_units, {}, []
    for one in legal(device, call):
        costs = sorted((clocks(device, call, one, n), n) for n in slicings(call, one.tile, units))
        each.append((*costs[0], one, costs))
    each.sort(key=lambda e: e[0])
    near = [e for e in each[:best] if e[0] < FAR * each[0][0]]
    for _, slices, one, _ in near:
        found[tiled(device, call, one, slices)] = None
    for _, slices, one, costs in near[:OTHER_SLICES]:
        piece = one.tile.BK or 1
        wanted = {1, 2 * slices, slices // 2, *(n for _, n in costs)}
        for n in sorted({whole_slices(call.K, piece, w) for w in wanted if 1 <= w <= max(1, call.K // (2 * piece))}):
            found[tiled(device, call, one, n)] = None
    far = [e for e in each[len(near) :] if e[0] < 6 * each[0][0]]
    for _, slices, one, _ in rng.sample(far, min(CHANCE, len(far))):
        found[tiled(device, call, one, slices)] = None
    return list(found)


def hopper(device, call):
    """The two best variants of Hopper's kernel, where it is not out of the question."""
    if call.M * call.N < FFMA_LEAST // 4 or hopper_fp32.supported(device, call):
        return []
    units = device.compute_units
    fit = [v for v in hopper_fp32.VARIANTS if not hopper_fp32.unfit(call, v)]
    return [ffma_choice(v, "") for v in sorted(fit, key=lambda v: hopper_fp32.reckoned(call, units, v))[:2]]


def skinny(device, call, rng):
    """One thing changed after the other around a usual choice, then some by chance; slices for a few waves."""
    s, batch = Skinny.of(call), call.batch if isinstance(call, GemmCall) else 1
    wide, together = skinny_widths(s)
    if s.by_rows:
        first = {"ITEMS": 256, "TEAM": 32, "TM": 4, "WAVES": 1.0}
        values = {"ITEMS": (64, 128), "TEAM": (8, 16), "TM": (1, 2, 8), "WAVES": (0.0, 0.5, 2.0, 4.0)}
    else:
        first = {"ACROSS": 32, "DN": 4, "TN": 16, "KU": 4, "WAVES": 1.0}
        values = {"ACROSS": (16, 64), "DN": (2, 8), "TN": (8, 32), "KU": (2, 8), "WAVES": (0.0, 0.5, 2.0, 4.0)}

    def made(at):
        if s.by_rows:
            tile = Tile(BM=at["ITEMS"] // at["TEAM"] * at["TM"], BN=at["TEAM"] * wide, TM=at["TM"], TN=wide, VA=wide, VB=together)
        else:
            tile = Tile(BM=at["ACROSS"] * wide, BN=at["DN"] * at["TN"], TM=wide, TN=at["TN"], VA=wide, KU=at["KU"])
        blocks = -(-s.length // tile.BM) * batch
        at_once = max(1, 2048 // tile.work_items) * device.compute_units
        slices = max(1, min(round(at["WAVES"] * at_once / blocks), s.depth // (2 * turn(tile)), MOST_SLICES))
        return sliced_choice(device, call, "rows" if s.by_rows else "columns", tile, slices)

    points = [first, *({**first, name: v} for name, vs in values.items() for v in vs)]
    points += [{name: rng.choice((first[name], *vs)) for name, vs in values.items()} for _ in range(6)]
    return list(dict.fromkeys(c for at in points if (c := made(at)) is not None))


def choices(device, problem, seed):
    """The model's own first, then cuBLAS, then everything else."""
    call, rng = call_of(problem), random.Random(f"{seed} {problem}")
    found = [plain(by_model(device, call))]
    if device.kind == "gpu" and not lacking(device, call):
        found.append(Choice("cublas", None))
    short = few(call)
    if short is not None:
        found += skinny(device, call, rng)
    if isinstance(call, GemmCall) and min(call.M, call.N) > 1:
        found += hopper(device, call)
        found += products(device, call, rng, BEST if min(call.M, call.N) > FEW else BEST // 2)
    return list(dict.fromkeys(plain(c) for c in found))[: MOST + (short is not None)]


def suitable(device, count, seed):
    """The drawn shapes whose operands are quickly made."""
    fit = (p for p in drawn(device, 2 * count, seed) if max(m.rows * m.cols for m in p.matrices) <= LARGEST)
    return [p for p, _ in zip(fit, range(count), strict=False)]


class Record:
    """What has been measured, each choice named once."""

    def __init__(self, out, device, seed):
        self.out, self.device, self.seed = out, device, seed
        self.choices, self.shapes, self.failures, self.written = {}, [], [], time.monotonic()

    def add(self, problem, tried, outcome):
        """One shape."""
        if outcome.trouble or not outcome.sampled:
            self.failures.append(f"{problem}: {outcome.trouble}")
            return
        measured = []
        for choice, one in zip(tried, outcome.sampled, strict=True):
            number = self.choices.setdefault(choice, len(self.choices))
            measured.append([number, one.status, list(one.seconds)])
            if one.status not in ("right", ""):
                self.failures.append(f"{problem}: {choice.kernel} {choice.tile} is {one.status}: {one.message[:200]}")
        self.shapes.append({"problem": problem.describe(), "class": class_of(call_of(problem)), "measured": measured})

    def write(self):
        """All of it."""
        what = shlex.join(["python", "benchmarks/routes.py", *sys.argv[1:]])
        results.write(
            self.out,
            results.record(
                what, environment.environment(self.device), [], self.failures, kind="routes", seed=self.seed,
                choices=[describe(c) for c in self.choices], shapes=self.shapes,
            ),
        )  # fmt: skip
        self.written = time.monotonic()


def table(record):
    """By class: how often cuBLAS, the model's choice and the better of them were within 5 % of the best."""
    rows = {}
    names = [c.kernel for c in record.choices]
    for shape in record.shapes:
        times = [(statistics.median(s), names[n]) for n, status, s in shape["measured"] if status == "right" and s]
        if not times or shape["measured"][0][1] != "right":
            continue
        best, own = min(times)[0], times[0][0]
        vendor = min((t for t, name in times if name == "cublas"), default=float("inf"))
        rows.setdefault(shape["class"].split()[0], []).append([t / best <= 1.05 for t in (own, vendor, min(own, vendor))])
    print(f"\n{'class':10} shapes  ours  cuBLAS  better")
    for name, marks in sorted(rows.items()):
        print(f"{name:10} {len(marks):6d}", "".join(f"{sum(m):7d}" for m in zip(*marks, strict=True)))


def main():
    """Shape by shape, until time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", type=int, default=SHAPES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=200.0)
    wanted = parser.parse_args()
    device, end = backends.find(wanted.device), time.monotonic() + wanted.seconds
    problems = suitable(device, wanted.shapes, wanted.seed)
    lane, compiler = LocalLane(device), Compiler(device, max(1, cores() - 2))
    record = Record(wanted.out, device, wanted.seed)
    try:
        fingerprint, plans, left, futures = lane.start(), [], list(problems), {}
        while left or plans:
            while left and len(plans) < AHEAD:
                problem = left.pop(0)
                tried = choices(device, problem, wanted.seed)
                for one in tried:  # slices are the launch's affair
                    key = one.kernel, replace(one.tile, SPLIT_K=None) if one.tile else None, one.options
                    if key not in futures:
                        futures[key] = compiler.ahead(one, fingerprint)
                plans.append((problem, tried))
            problem, tried = plans.pop(0)
            if (rest := end - time.monotonic()) <= 0:
                print("out of time:", 1 + len(plans) + len(left), "shapes were not measured")
                break
            for one in tried:
                future = futures[one.kernel, replace(one.tile, SPLIT_K=None) if one.tile else None, one.options]
                if future is not None:
                    future.exception(max(1.0, rest))
            trial = Trial(
                problem, tuple(tried), TURNS, TURNS, SAMPLE_SECONDS, hopeless=HOPELESS, limit=10.0, seed=wanted.seed
            )  # fmt: skip
            record.add(problem, tried, lane.run(trial))
            if time.monotonic() > record.written + STORE_EVERY:
                record.write()
    except (TimeoutError, ToprungError) as error:
        print("ended early:", error)
    finally:
        record.write()
        lane.close()
        compiler.close()
    for failure in record.failures[:10]:
        print(failure)
    table(record)
    print(len(record.shapes), "shapes,", sum(len(s["measured"]) for s in record.shapes), "times,", len(record.failures), "failures")


if __name__ == "__main__":
    main()
