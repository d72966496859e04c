"""Fit the cost model of selection (kernels/cost_model.py, ``BLOCKS`` of kernels/blocks.py) to recorded times, and say how well it
selects.

    python benchmarks/fit_routes.py results/nvidia-h200/routes.json results/nvidia-h200/tune-check.json \
        --tiles results/nvidia-h200/tiles.json

Records are of ``benchmarks/routes.py`` and of ``toprung tune --check``. A third of the drawn shapes, by a hash of each, is held
out: nothing is fitted to it, and the table in docs/tuning.md is about it.
Relative errors of times are made small, all candidates of a shape counting, the slow ones less; a soft loss keeps outliers from
deciding, and a weak pull keeps numbers that the data do not determine where they were. What selection loses by them counts
besides: a shape's mean loss where every candidate is taken with a probability that falls with its time by the model. What comes
out is printed to be put into the source. What stands there is, for the skinny kernels, what ``routes.json`` and a check from
seed 1 gave; for the block kernels what ``routes.json`` alone gave: with the check's times it selected no better on the third; but
for a few numbers, which both gave with the others held:

    --free '^(alone|iteration|launch|tile (8|9|1[0-4]|16|19))$'
    --free '^(second|adding)$'

the latter, and the numbers of ``rows`` and ``columns``, with checks of three seeds (1, 2 and 3). ``tune-check.json`` is that of
seed 2, and only the repository's history has that of seed 1.
For cuBLAS beside ours it is what loses least on all shapes, the third included.
"""

import argparse
import itertools
import math
import re
import statistics
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from tables.tuning import device_of, drawn, held_out, now
from toprung.dispatch.ranking import ranked
from toprung.dispatch.selection import decoded
from toprung.kernels import cost_model
from toprung.kernels.blocks import BLOCKS, listed
from toprung.kernels.cublas.family import aligned
from toprung.kernels.hopper_sgemm.cost import predicted
from toprung.kernels.registry import family
from toprung.lab.harness.results import read
from toprung.oracle.problems import problem_of

TILED, SKINNY, SGEMM, CUBLAS = family("tiled"), family("skinny"), family("hopper_sgemm"), family("cublas")
WITHIN = 1.05
GOOD, LITTLE = 1.3, 0.4
"""Candidates up to this many times as slow as the best (first number) weigh fully, the others this much (second)."""
SOFT, PULL = 0.08, 0.1
FOREIGN = 0.4
"""Weight of a time of ``tiles.json``: few products, each with many tiles."""
LOSS, DOUBT = 3.0, 0.03
"""Weight of that loss, and the error of a time by which the probability falls to a third."""
HOPELESS = 4.0
"""Ratio to the fastest from which one call alone ruled a candidate out, so that it was not timed properly."""
HELD_UP = 50e-6
"""A single sample below this may be the host's."""
LARGE = 4_000_000
"""Results of C from which on writing them is seen in Hopper's kernel."""
FIXED = {"launch", "multiply", "hidden"}
"""Constants of the skinny kernels that are not fitted: no measurement tells them from the rest, and ``hidden`` is the form of the
count. Nor are those fitted that are 0."""


def timed(record):
    """(problem, [(candidate, seconds)]) of each shape."""
    if record["kind"] == "tiles":
        return [(problem_of(p["problem"]), [(decoded(t), t["seconds"]) for t in p["quick"]]) for p in record["problems"]]
    if record["kind"] == "tune-check":
        found = ((problem_of(s["problem"]), [one for m in s["measured"] if (one := sampled(m))]) for s in record["shapes"])
        return [(problem, candidates) for problem, candidates in found if candidates]
    return [(one.problem, one.timed) for one in drawn(record)]


def sampled(measured):
    """(candidate, seconds) of what a check measured; None where that says little.

    While it measures, it compiles what comes next, which holds up the host of short calls for some turns: so not the median. With
    the queue held the host has no part in it, and the device's time counts, as ``Held``.
    """
    candidate = decoded(measured)
    if measured["status"] == "right" and len(measured.get("device_seconds", ())) > 1 and measured["host_seconds"]:
        return candidate, Held(statistics.median(measured["device_seconds"]))
    seconds = sorted(measured["seconds"])
    few = len(seconds) == 1 and seconds[0] < HELD_UP and candidate.family is not CUBLAS
    return None if measured["status"] != "right" or not seconds or few else (candidate, seconds[len(seconds) // 4])


class Held(float):
    """Seconds that the device took, the host apart."""


class Fit:
    """Something with numbers in it, what was measured of it, and what it makes of that."""

    def __init__(self, start, rows):
        self.names, self.start, self.rows = list(start), np.log([start[n] for n in start]), rows

    def model(self, values):
        """Seconds of each row, by the model."""
        raise NotImplementedError

    def run(self):
        """The numbers that fit."""
        weights = np.array([(1.0 if t < GOOD * best else LITTLE) * own for _, t, best, own in self.rows])
        measured = np.log([t for _, t, _, _ in self.rows])
        places = {best: i for i, best in enumerate(dict.fromkeys(best for _, _, best, _ in self.rows))}
        shape = np.array([places[best] for _, _, best, _ in self.rows])
        count = len(places)
        fastest = np.full(count, np.inf)
        np.minimum.at(fastest, shape, measured)
        share = np.zeros(count)
        np.maximum.at(share, shape, np.array([own for *_, own in self.rows]))
        lost = measured - fastest[shape]

        def errors(x):
            values = dict(zip(self.names, np.exp(x), strict=True))
            model = np.log(self.model(values))
            least = np.full(count, np.inf)
            np.minimum.at(least, shape, model)
            likely = np.exp((least[shape] - model) / DOUBT)
            losses = np.bincount(shape, likely * np.minimum(lost, GOOD), count) / np.bincount(shape, likely, count)
            return np.concatenate([weights * (model - measured), LOSS * share * losses, PULL * (x - self.start)])

        found = least_squares(errors, self.start, loss="soft_l1", f_scale=SOFT, max_nfev=25)
        return {n: float(v) for n, v in zip(self.names, np.exp(found.x), strict=True)}


def numbers(record):
    """A record's numbers by name, those of its mappings as name.key."""
    found = {}
    for f in fields(record):
        value = getattr(record, f.name)
        found |= {f"{f.name}.{k}": v for k, v in value.items()} if hasattr(value, "items") else {f.name: value}
    return found


def built(record, values):
    """The inverse."""
    maps = {n.partition(".")[0] for n in values if "." in n}
    plain = {n: v for n, v in values.items() if "." not in n}
    nested = {m: MappingProxyType({n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{m}.")}) for m in maps}
    return replace(record, **plain, **nested)


class Products(Fit):
    """The tunable block kernel: its cycles, the host's, and each tile's efficiency; those whose names match ``free`` are fitted."""

    def __init__(self, device, shapes, free=""):
        self.device, self.table = device, {listed(c.tile): i for i, c in enumerate(BLOCKS)}
        rows = []
        for problem, found, own in shapes:
            desc = problem.desc
            best = min(t for _, t in found)
            for candidate, seconds in found:
                config = candidate.config
                i = self.table.get(listed(config.tile)) if candidate.family is TILED else None
                if i is not None and seconds < HOPELESS * best:
                    vc = dict(config.options)["VC"]
                    rows.append(((desc, replace(config.tile, SPLIT_K=None), i, config.slices, vc), seconds, best, own))
        start = numbers(cost_model.BLOCK) | {f"tile {i}": c.efficiency for i, c in enumerate(BLOCKS)}
        start |= {"host": cost_model.HOST.launch, "two": cost_model.HOST.two}
        self.fixed = {n: v for n, v in start.items() if not re.search(free, n)}
        super().__init__({n: v for n, v in start.items() if n not in self.fixed}, rows)
        self.cycles = list(numbers(cost_model.BLOCK))

    def model(self, values):
        """See ``Fit``."""
        values = {**self.fixed, **values}
        # the records are of a text whose lanes did not exchange narrow results: ``regrouped`` stays False
        p, found = built(cost_model.BLOCK, {n: values[n] for n in self.cycles}), []
        units, lanes, hz = self.device.compute_units, self.device.lanes or 128, cost_model.hz(self.device)
        for (desc, tile, i, slices, vc), t, *_ in self.rows:
            wide, efficiency = desc.widths[2], values[f"tile {i}"]
            cycles = cost_model.block_cycles(desc, tile, efficiency, BLOCKS[i].resident, slices, vc, wide, units, lanes, p)
            host = 0.0 if isinstance(t, Held) else values["host"] if slices == 1 else values["two"]
            found.append(max(cycles / hz, host))
        return found


class Shorts(Fit):
    """One of the skinny kernels."""

    def __init__(self, device, shapes, kernel):
        self.device, self.kernel, rows = device, kernel, []
        for problem, found, own in shapes:
            best = min(t for _, t in found)
            for candidate, seconds in found:
                config = candidate.config
                if candidate.family is SKINNY and config.kernel == kernel and seconds < HOPELESS * best:
                    tile, small = replace(config.tile, SPLIT_K=None), dict(config.options)["SMALL"]
                    rows.append(((problem.desc.skinny, tile, small, config.slices), seconds, best, own))
        super().__init__({n: v for n, v in numbers(cost_model.SKINNY[kernel]).items() if v and n not in FIXED}, rows)

    def model(self, values):
        """See ``Fit``."""
        own = {self.kernel: replace(cost_model.SKINNY[self.kernel], **values)}
        units, hz, found = self.device.compute_units, cost_model.hz(self.device), []
        for (s, tile, small, slices), t, *_ in self.rows:
            cycles = cost_model.skinny_cycles(
                self.kernel, tile, s.length, s.few, small, s.depth, s.on, s.batch, slices, units, own
            )  # fmt: skip
            host = 0.0 if isinstance(t, Held) else cost_model.HOST.launch if slices == 1 else cost_model.HOST.two
            found.append(max(cycles / hz, host))
        return found


def kept(device, shapes):
    """Share of shapes on which what the source as it stands selects is within the promise, of those where that was measured."""
    lost = []
    for problem, found, _ in shapes:
        times = dict(found)
        if (mine := now(device, problem)) in times:
            lost.append(times[mine] / min(times.values()))
    return f"{sum(ratio <= WITHIN for ratio in lost)} of {len(lost)}"


def quality(fit, values):
    """Median and spread of the model's errors."""
    errors = abs(np.log(fit.model(values)) - np.log([t for _, t, *_ in fit.rows]))
    middle, most = 100 * np.quantile(errors, (0.5, 0.9))
    return f"{len(errors)} times, median error {middle:.1f} %, nine in ten below {most:.0f} %"


def cublas(device, training, rest):
    """``TIMES``, ``MORE`` and ``SPLIT_MORE`` of cuBLAS with which the least time is lost to the slower of the two."""

    def weighed(shapes):
        for problem, found, _ in shapes:
            theirs = next((t for c, t in found if c.family is CUBLAS), None)
            ours = min((t for c, t in found if c.family is not CUBLAS), default=None)
            if theirs and ours:
                desc = problem.desc
                kernels = [(seconds, slices > 1) for slices, seconds in aligned(device, desc)]
                yield ranked(device, desc)[0].seconds, kernels, math.log(ours / theirs)

    def losses(known, times, more, split_more):
        for own, kernels, lead in known:
            theirs = max(min(times * t + split_more * split for t, split in kernels) + more, cost_model.HOST.cublas)
            yield max(0.0, lead if theirs >= own else -lead)

    known, others = list(weighed(training)), list(weighed(rest))
    grid = itertools.product(np.arange(0.9, 1.121, 0.01), np.arange(0, 4.1e-6, 0.5e-6), np.arange(0, 4.1e-6, 1e-6))
    best = min(grid, key=lambda constants: sum(losses(known, *constants)))
    print(f"cuBLAS: TIMES={best[0]:.2f}, MORE={best[1]:.1e}, SPLIT_MORE={best[2]:.1e}")
    for name, shapes in (("", known), ("held out: ", others)):
        lost = list(losses(shapes, *best))
        print(f"  {name}{sum(one > math.log(WITHIN) for one in lost)} of {len(lost)} lose 5 %, the worst {math.exp(max(lost)):.2f}")


def writing(device, shapes):
    """``RESULT`` of Hopper's kernel: what it takes beyond its own prediction, by whether C lies on 16 bytes, where C is large."""
    found = {True: [], False: []}
    for problem, timed_here, _ in shapes:
        for candidate, seconds in timed_here:
            if candidate.family is SGEMM and problem.M * problem.N >= LARGE:
                desc = problem.desc
                more = seconds - predicted(desc, device.compute_units, candidate.config)
                each = more * cost_model.hz(device) * device.compute_units / (problem.M * problem.N)
                found[desc.widths[2] == 4].append(each)
    print("hopper_sgemm: RESULT:", ", ".join(f"{np.median(found[wide]):.2f} of {len(found[wide])}" for wide in (False, True)))


def main():
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("routes", type=Path, nargs="+")
    parser.add_argument("--tiles", type=Path)
    parser.add_argument("--free", default="", help="fit only those of the block model's numbers whose names match this pattern")
    wanted = parser.parse_args()
    records = [read(path) for path in wanted.routes]
    device = device_of(records[0])
    shapes = [(p, found, 1.0) for record in records for p, found in timed(record)]
    training, rest = ([one for one in shapes if held_out(one[0]) == held] for held in (False, True))
    tiles = timed(read(wanted.tiles)) if wanted.tiles else []
    training += [(p, found, FOREIGN) for p, found in tiles]
    print("the selection is kept on", kept(device, training), "; held out:", kept(device, rest))
    products = Products(device, training, wanted.free)
    values = products.run()
    print("blocks:", quality(products, values), "; held out:", quality(Products(device, rest, wanted.free), values))
    for name, value in values.items():
        print(f"  {name} = {value:.4g}" + (f"   # {BLOCKS[int(name.split()[1])].tile}" if name.startswith("tile ") else ""))
    drawn_ones = [one for one in training if one[2] == 1.0]
    writing(device, drawn_ones)
    cublas(device, drawn_ones, rest)
    for kernel in cost_model.SKINNY:
        short = Shorts(device, training, kernel)
        values = short.run()
        print(f"{kernel}:", quality(short, values), "; held out:", quality(Shorts(device, rest, kernel), values))
        print("  " + ", ".join(f"{n}={v:.4g}" for n, v in values.items()))


if __name__ == "__main__":
    main()
