"""Times of what else a call could have run: cuBLAS and many candidates of ours on drawn shapes, for the cost model of selection.

    python benchmarks/routes.py results/nvidia-h200/routes.json --seconds 200
    python benchmarks/routes.py routes-short.json --short
    python benchmarks/routes.py routes.json --device pocl --shapes 5 --seed 3

Shapes are drawn as ``toprung tune --check`` draws them, from another seed. For each: what the heuristic selects, cuBLAS, the tiles
that the cost model finds best (of its table and of ``MORE``, each with its slices and some with others; with slices in clusters), a
few tiles by chance, so that the model is not asked alone, Hopper's kernel, and for short sides and vectors teams and slices around
the usual ones. The tuner's worker verifies each before it is timed in turns with the others; binaries are compiled by the other
cores meanwhile. The record is written every few seconds. ``benchmarks/fit_routes.py`` fits the cost model to it.
"""

import argparse
import random
import time
from dataclasses import replace
from pathlib import Path

from toprung import backends
from toprung.device import cores
from toprung.dispatch.ranking import ranked, select_own
from toprung.dispatch.selection import Candidate
from toprung.errors import ToprungError
from toprung.gemm.classes import FEW, class_of, is_skinny
from toprung.gemm.desc import GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import TileConfig, candidates
from toprung.kernels.blocks import BLOCKS, Block, split_k_factors, width_of_c
from toprung.kernels.cluster import SIZES as SLICES
from toprung.kernels.hopper_sgemm.config import VARIANTS
from toprung.kernels.hopper_sgemm.cost import predicted, unfit
from toprung.kernels.hopper_sgemm.family import LEAST
from toprung.kernels.registry import family
from toprung.kernels.skinny_model import MOST_SLICES, block_count, iteration_depth, refused, team_tile
from toprung.kernels.split_k import whole_slices
from toprung.kernels.tiled.family import configured, is_regrouped
from toprung.kernels.tiled.record import RECORD
from toprung.lab.harness import environment, results
from toprung.tile import Tile, broken
from toprung.tune.compiler import Compiler
from toprung.tune.executors.local import LocalLane
from toprung.tune.rows import Choices
from toprung.tune.shapes import drawn
from toprung.tune.trial import Trial

SEED, SHAPES = 11, 320
SKINNY, IN_CLUSTERS, SGEMM, TILED, CLUSTER = (
    family(name) for name in ("skinny", "skinny_cluster", "hopper_sgemm", "tiled", "tiled_cluster")
)
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
    (128, 32, 16, 128, 16, 8, 8, 2), (16, 256, 16, 16, 128, 16, 4, 2), (64, 64, 32, 64, 16, 4, 8, 2), (64, 32, 32, 64, 8, 4, 4, 2),
    (32, 16, 16, 32, 8, 2, 4, 2), (32, 256, 8, 16, 128, 8, 8, 2), (64, 64, 16, 64, 16, 4, 8, 2), (16, 32, 8, 16, 32, 8, 2, 2),
)  # fmt: skip
BEST, OTHER_SLICES, CHANCE, MOST = 12, 3, 3, 22
CLUSTERS, CHANCE_CLUSTERS = 6, 3
LISTED_TEAMS, CHANCE_TEAMS = 20, 5
FAR = 2.0
"""Ratio of predicted time to the best from which candidates are left to chance."""
LARGEST = 60_000_000
"""Elements of an operand: larger ones take longer to make than to measure."""
TURNS, SAMPLE_SECONDS, HOPELESS = 5, 0.002, 1.5
AHEAD, STORE_EVERY = 40, 15.0


def more():
    """``MORE`` as blocks, with efficiencies guessed from their area: for the order alone."""
    known = {replace(c.tile, STAGES=1) for c in BLOCKS}
    for bm, bn, bk, wm, wn, tm, tn, stages in MORE:
        tile = Tile(BM=bm, BN=bn, BK=bk, WM=wm, WN=wn, TM=tm, TN=tn, VEC=min(4, tn), VA=4, VB=4, STAGES=stages, PADA=4, PADB=4)
        if replace(tile, STAGES=1) not in known:
            guess = min(0.7, 0.39 * (bm * bn / 1024) ** 0.33)
            resident = max(2, min(16, 2048 // tile.work_items, 98304 // (bm * bn * 2)))
            yield Block(tile, guess, resident)


def legal(device, desc):
    """Every block that is, with accesses as wide as operands and tile allow."""
    a, b, _ = desc.widths
    rules = RECORD.all_rules({})
    for one in (*BLOCKS, *more()):
        for va, vb in sorted({(x, y) for x in (1, 2, 4) for y in (1, 2, 4) if x <= a and y <= b}, reverse=True):
            tile = replace(one.tile, VA=va, VB=vb)
            if not broken(rules, tile, device):
                yield replace(one, tile=tile)
                break


def tiled(device, desc, one, slices):
    """A block as a candidate."""
    return Candidate(TILED, configured(device, desc, one, slices))


def cycles(device, desc, one, slices):
    """Return what the cost model counts of a block. It leaves out the host, the limit of short calls."""
    return cost_model.block_cycles(
        desc, one.tile, one.efficiency, one.resident, slices, width_of_c(desc, one.tile, slices), desc.widths[2],
        device.compute_units, device.lanes or 128, regrouped=is_regrouped(configured(device, desc, one, slices)),
    )  # fmt: skip


def products(device, desc, rng, best):
    """Tiles and slices, the model's order first."""
    found, each = {}, []
    for one in legal(device, desc):
        costs = sorted((cycles(device, desc, one, n), n) for n in split_k_factors(desc, one.tile, device.compute_units))
        each.append((*costs[0], one, costs))
    each.sort(key=lambda e: e[0])
    near = [e for e in each[:best] if e[0] < FAR * each[0][0]]
    for _, slices, one, _ in near:
        found[tiled(device, desc, one, slices)] = None
    for _, slices, one, costs in near[:OTHER_SLICES]:
        piece = one.tile.BK or 1
        wanted = {1, 2 * slices, slices // 2, *(n for _, n in costs)}
        for n in sorted({whole_slices(desc.K, piece, w) for w in wanted if 1 <= w <= max(1, desc.K // (2 * piece))}):
            found[tiled(device, desc, one, n)] = None
    far = [e for e in each[len(near) :] if e[0] < 6 * each[0][0]]
    for _, slices, one, _ in rng.sample(far, min(CHANCE, len(far))):
        found[tiled(device, desc, one, slices)] = None
    return list(found)


def clusters(device, desc, rng):
    """Tiles with their slices in clusters: those that the model likes best, and a few by chance."""
    if CLUSTER.supports(device, desc):
        return []
    costs = {config: CLUSTER.cost(device, desc, config) for config in candidates(CLUSTER, device, desc)}
    best = {}
    for config in sorted(costs, key=costs.__getitem__):
        best.setdefault(replace(config.tile, SPLIT_K=None), config)
    found = list(best.values())[:CLUSTERS]
    rest = [config for config in costs if config not in found and costs[config] < FAR * costs[found[0]]]
    return [Candidate(CLUSTER, config) for config in (*found, *rng.sample(rest, min(CHANCE_CLUSTERS, len(rest))))]


def hopper(device, desc):
    """The two best variants of Hopper's kernel, where it is not out of the question."""
    if desc.M * desc.N < LEAST // 4 or SGEMM.supports(device, desc):
        return []
    fit = [v for v in VARIANTS if not unfit(desc, v)]
    return [Candidate(SGEMM, v) for v in sorted(fit, key=lambda v: predicted(desc, device.compute_units, v))[:2]]


def skinny(device, desc, rng):
    """Some of what is weighed and some by chance; slices for a few waves, or in clusters."""
    s = desc.skinny
    if s.by_rows:
        first = {"ITEMS": 256, "TEAM": 32, "TM": 4, "AT_ONCE": 1, "WAVES": 1.0}
        values = {
            "ITEMS": (64, 128, 512), "TEAM": (8, 16, 64, 128, 256), "TM": (1, 2, 8), "AT_ONCE": (2, 4),
            "WAVES": (0.0, 0.5, 2.0, 4.0),
        }  # fmt: skip
    else:
        first = {"ACROSS": 32, "DN": 4, "TN": 16, "KU": 4, "WAVES": 1.0}
        values = {"ACROSS": (8, 16, 64), "DN": (2, 8, 16, 32), "TN": (8, 32), "KU": (2, 8), "WAVES": (0.0, 0.5, 2.0, 4.0)}

    def made(at, clustered=0):
        if refused(s, at):
            return None
        tile = team_tile(s, at, *s.widths)
        if clustered:
            config = IN_CLUSTERS.at(device, desc, {**at, "SPLIT_K": clustered})
            return None if config is None else Candidate(IN_CLUSTERS, config)
        at_once = max(1, cost_model.THREADS // tile.work_items) * device.compute_units
        wanted = round(at["WAVES"] * at_once / block_count(s, tile))
        slices = max(1, min(wanted, s.depth // (2 * iteration_depth(tile)), MOST_SLICES))
        config = SKINNY.at(device, desc, {**at, "SPLIT_K": slices})
        return None if config is None else Candidate(SKINNY, config)

    def drawn_point():
        return {name: rng.choice((first[name], *vs)) for name, vs in values.items()}

    found = [made(first), *(made(drawn_point()) for _ in range(CHANCE_TEAMS))]
    for kernels in (SKINNY, IN_CLUSTERS):
        if not kernels.supports(device, desc):
            listed_ones = list(candidates(kernels, device, desc))
            found += [Candidate(kernels, c) for c in rng.sample(listed_ones, min(LISTED_TEAMS, len(listed_ones)))]
            found += [made(drawn_point(), rng.choice(SLICES)) for _ in range(CHANCE_TEAMS if kernels is IN_CLUSTERS else 0)]
    return list(dict.fromkeys(candidate for candidate in found if candidate is not None))


def choices(device, problem, seed, short):
    """The heuristic's own first, then cuBLAS, then everything else; ``short``: of the kernels for short sides alone."""
    desc, rng = problem.desc, random.Random(f"{seed} {problem}")
    found = [select_own(device, desc).candidate]
    if device.kind == "gpu" and (theirs := ranked(device, desc, own=False)):
        found.append(theirs[0].candidate)
    if not SKINNY.supports(device, desc):
        found += skinny(device, desc, rng)
    if short:
        return list(dict.fromkeys(found))
    if isinstance(desc, GemmDesc) and min(desc.M, desc.N) > 1:
        found += hopper(device, desc)
        found += clusters(device, desc, rng)
        found += products(device, desc, rng, BEST if min(desc.M, desc.N) > FEW else BEST // 2)
    return list(dict.fromkeys(found))[: MOST + CLUSTERS + CHANCE_CLUSTERS]


def binary(candidate):
    """Return what a candidate's binary depends on: slices are not part of it where only the launch knows them."""
    config = candidate.config
    if isinstance(config, TileConfig) and candidate.family not in (CLUSTER, IN_CLUSTERS):
        config = replace(config, tile=replace(config.tile, SPLIT_K=None))
    return candidate.family, config


def suitable(device, count, seed, short):
    """The drawn shapes whose operands are quickly made; ``short``: those with a short side."""
    wanted = (p for p in drawn(device, (8 if short else 2) * count, seed) if not short or is_skinny(p.desc))
    fit = (p for p in wanted if max(m.rows * m.cols for m in p.matrices) <= LARGEST)
    return [p for p, _ in zip(fit, range(count), strict=False)]


class Record:
    """Return what has been measured, each candidate named once."""

    def __init__(self, out, device, seed):
        self.out, self.device, self.seed = out, device, seed
        self.choices, self.shapes, self.failures, self.written = Choices(), [], [], time.monotonic()

    def add(self, problem, tried, outcome):
        """One shape."""
        if outcome.trouble or not outcome.sampled:
            self.failures.append(f"{problem}: {outcome.trouble}")
            return
        sampled = list(zip(tried, outcome.sampled, strict=True))
        for candidate, one in sampled:
            if one.status not in ("right", ""):
                self.failures.append(f"{problem}: {candidate} is {one.status}: {one.message[:200]}")
        measured = self.choices.rows(sampled)
        self.shapes.append({"problem": problem.describe(), "class": class_of(problem.desc), "measured": measured})

    def write(self):
        """All of it."""
        what = results.command("python benchmarks/routes.py")
        results.write(
            self.out,
            results.record(
                what, environment.environment(self.device), [], self.failures, kind="routes", seed=self.seed,
                choices=self.choices.describe(), shapes=self.shapes,
            ),
        )  # fmt: skip
        self.written = time.monotonic()


def table(record):
    """By class: how often cuBLAS, the heuristic's own and the better of them were within 5 % of the best."""
    rows = {}
    names = [c.kernel for c in record.choices]
    for shape in record.shapes:
        times = [(row[3], names[row[0]]) for row in shape["measured"] if row[1] == "right" and row[2]]
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
    parser.add_argument(
        "--short", action="store_true", help="products with a short side alone, by the kernels for those and cuBLAS"
    )
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=200.0)
    wanted = parser.parse_args()
    device, end = backends.find(wanted.device), time.monotonic() + wanted.seconds
    problems = suitable(device, wanted.shapes, wanted.seed, wanted.short)
    lane, compiler = LocalLane(device), Compiler(device, max(1, cores() - 2))
    record = Record(wanted.out, device, wanted.seed)
    try:
        fingerprint, plans, left, futures = lane.start(), [], list(problems), {}
        while left or plans:
            while left and len(plans) < AHEAD:
                problem = left.pop(0)
                tried = choices(device, problem, wanted.seed, wanted.short)
                for one in tried:
                    if (binary(one), problem.desc) not in futures:
                        futures[binary(one), problem.desc] = compiler.ahead(one, problem.desc, fingerprint)
                plans.append((problem, tried))
            problem, tried = plans.pop(0)
            if (rest := end - time.monotonic()) <= 0:
                print("out of time:", 1 + len(plans) + len(left), "shapes were not measured")
                break
            for one in tried:
                future = futures[binary(one), problem.desc]
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
