r"""Fit the cost models of selection (kernels/models/*.json) to recorded times, and test them.

    python benchmarks/fit_routes.py results/nvidia-h100-80gb-hbm3/routes-clusters.json \
        results/nvidia-h100-80gb-hbm3/routes-2026-11-26.json

Records are of ``benchmarks/routes.py`` and of ``toprung tune --check``, of one card or of several. A third of the drawn shapes,
by a hash of each, is held out: nothing is fitted to it.
The fit minimises relative errors of times over all candidates of a shape, with less weight on slow ones. A soft loss limits the
weight of outliers; a weak penalty keeps numbers that the data do not determine where they were. The loss of selection is added: a
shape's mean loss if each candidate is taken with a probability that falls with its predicted time. The numbers are written into
the files, with the errors on held-out shapes; ``--keep`` fits nothing and writes the errors of the present numbers. Only ``--keep``
writes the share of good selections, in a run after the fit: a process selects by the numbers it began with.

The present numbers for blocks are from these two records of an H100. Those for cuBLAS are from an older record and checks of seeds
57, 61, 73 and 97 (in the repository's history). ``memory`` is an H200's in both, and was not fitted:

    --free '^(?!memory|host|two)'

Skinny kernels (teams) have about the numbers that their own record gives:

    python benchmarks/fit_routes.py results/nvidia-h100-80gb-hbm3/routes-short.json --short

except ``memory``, which is an H200's again. For batches, K >= DEEP and K <= SHORT cuBLAS has a further factor, chosen for the least
loss of selection (``kernels/cublas/family.py``).
"""

import argparse
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from tables.tuning import device_of, held_out, now
from toprung.dispatch.selection import decoded
from toprung.gemm.desc import GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.blocks import BLOCKS, block_like
from toprung.kernels.cublas import family as theirs
from toprung.kernels.hopper_sgemm.cost import predicted
from toprung.kernels.registry import family
from toprung.kernels.skinny_model import skinny_cycles, teams
from toprung.kernels.tiled.family import is_regrouped
from toprung.lab.harness.results import read, write
from toprung.oracle.problems import problem_of
from toprung.tune.rows import read as read_rows

TILED, CLUSTER, SKINNY, SHORT_CLUSTER, SGEMM, CUBLAS = (
    family(n) for n in ("tiled", "tiled_cluster", "skinny", "skinny_cluster", "hopper_sgemm", "cublas")
)
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
SMOOTH = 16
"""Power by which the larger of the host's time and the device's counts."""
HELD_UP = 50e-6
"""A single sample below this may be the host's."""
LARGE = 4_000_000
"""Results of C from which on writing them is seen in Hopper's kernel."""
FIXED = {"launch", "multiply", "hidden", "eager"}
"""Constants of the skinny kernels that are not fitted: no measurement tells them from the rest, and ``hidden`` is the form of the
count. Nor are those fitted that are 0."""


def timed(record):
    """(problem, [(candidate, seconds)]) of each shape."""
    if record["kind"] == "tiles":
        return [(problem_of(p["problem"]), [(decoded(t), t["seconds"]) for t in p["quick"]]) for p in record["problems"]]
    of_row = sampled if record["kind"] == "tune-check" else lambda row: Once(row.seconds) if row.samples == 1 else row.seconds
    found = []
    for shape, tried in zip(record["shapes"], read_rows(record, again=False), strict=True):
        candidates = [
            (row.candidate, seconds) for row in tried if row.status == "right" and row.samples and (seconds := of_row(row))
        ]
        if candidates:
            found.append((problem_of(shape["problem"]), candidates))
    return found


def sampled(row):
    """Return the seconds of what a check measured; None where that says little.

    While it measures, it compiles what comes next, which holds up the host of short calls for some turns: so not the median. With
    the queue held the host has no part in it, and the device's time counts, as ``Held``.
    """
    if row.device:
        return Held(row.device)
    if row.samples > 1:
        return row.low
    return None if row.seconds < HELD_UP and row.candidate.family is not CUBLAS else Once(row.seconds)


CALLED = 25e-6
"""Seconds from which on a call of cuBLAS takes the device longer than the host."""


class Held(float):
    """Seconds that the device took, the host apart."""


class Once(float):
    """Seconds of one call, of a library's perhaps the first, which loads its kernel."""


class Fit:
    """Something with numbers in it, what was measured of it, and what it makes of that."""

    loss, steps, keep = LOSS, 25, False

    def __init__(self, start, rows):
        self.names, self.start, self.rows = list(start), np.log([start[n] for n in start]), rows

    def model(self, values):
        """Seconds of each row, by the model."""
        raise NotImplementedError

    def run(self):
        """The numbers that fit; those that stand where they are to be kept."""
        if self.keep or not self.names:
            return {n: float(f"{v:.9g}") for n, v in zip(self.names, np.exp(self.start), strict=True)}
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
            return np.concatenate([weights * (model - measured), self.loss * share * losses, PULL * (x - self.start)])

        found = least_squares(errors, self.start, loss="soft_l1", f_scale=SOFT, max_nfev=self.steps)
        return {n: float(f"{v:.4g}") for n, v in zip(self.names, np.exp(found.x), strict=True)}


def numbers(record):
    """A record's numbers by name, those of its mappings as name.key."""
    found = {}
    for name, value in record._asdict().items():
        found |= {f"{name}.{k}": v for k, v in value.items()} if hasattr(value, "items") else {name: value}
    return found


def built(record, values):
    """The inverse."""
    maps = {n.partition(".")[0] for n in values if "." in n}
    plain = {n: v for n, v in values.items() if "." not in n}
    nested = {m: MappingProxyType({n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{m}.")}) for m in maps}
    return record._replace(**plain, **nested)


class Products(Fit):
    """The tunable block kernel: its cycles, the host's, and each tile's efficiency; those whose names match ``free`` are fitted."""

    def __init__(self, shapes, free=""):
        rows = []
        for problem, found, own, device in shapes:
            desc = problem.desc
            best = min(t for _, t in found)
            for candidate, seconds in found:
                config = candidate.config
                block = block_like(config.tile) if candidate.family in (TILED, CLUSTER) else None
                if block and seconds < HOPELESS * best:
                    i, *how = BLOCKS.index(block), dict(config.options)["VC"], is_regrouped(config), candidate.family is CLUSTER
                    rows.append(((device, desc, replace(config.tile, SPLIT_K=None), i, config.slices, *how), seconds, best, own))
        start = numbers(cost_model.BLOCK) | {f"tile {i}": c.efficiency for i, c in enumerate(BLOCKS)}
        start |= {"host": cost_model.HOST.launch, "two": cost_model.HOST.two}
        self.fixed = {n: v for n, v in start.items() if not re.search(free, n)}
        super().__init__({n: v for n, v in start.items() if n not in self.fixed}, rows)
        self.cycles = list(numbers(cost_model.BLOCK))

    def model(self, values):
        """See ``Fit``."""
        values = {**self.fixed, **values}
        p, found = built(cost_model.BLOCK, {n: values[n] for n in self.cycles}), []
        for (device, desc, tile, i, slices, vc, *how), t, *_ in self.rows:
            units, lanes, hz = device.compute_units, device.lanes or 128, cost_model.hz(device)
            wide, own, resident = desc.widths[2], values[f"tile {i}"], BLOCKS[i].resident
            cycles = cost_model.block_cycles(desc, tile, own, resident, slices, vc, wide, units, lanes, p, *how)
            host = 0.0 if isinstance(t, Held) else values["host"] if slices == 1 or how[-1] else values["two"]
            found.append(max(cycles / hz, host))
        return found


class Shorts(Fit):
    """One of the skinny kernels, in the teams that are weighed. The host's part is each record's own: the least of its times."""

    loss, steps = 8.0, 60

    def __init__(self, shapes, kernel):
        self.kernel, rows = kernel, []
        least = host_of(shapes)
        for problem, found, own, device in shapes:
            best = min(t for _, t in found)
            for candidate, seconds in found:
                config = candidate.config
                if candidate.family in (SKINNY, SHORT_CLUSTER) and config.kernel == kernel and seconds < HOPELESS * best:
                    tile = replace(config.tile, SPLIT_K=None)
                    meet, s = candidate.family is SHORT_CLUSTER, problem.desc.skinny
                    host = 0.0 if isinstance(seconds, Held) else least[launches(candidate)]
                    if tile in teams(s):
                        rows.append(((device, s, tile, config.slices, meet, host), seconds, best, own))
        super().__init__({n: v for n, v in numbers(cost_model.SKINNY[kernel]).items() if v and n not in FIXED}, rows)

    def model(self, values):
        """See ``Fit``."""
        own = {self.kernel: cost_model.SKINNY[self.kernel]._replace(**values)}
        found = []
        for (device, s, tile, slices, meet, host), *_ in self.rows:
            cycles = skinny_cycles(s, tile, slices, device.compute_units, own, meet)
            found.append(((cycles / cost_model.hz(device)) ** SMOOTH + host**SMOOTH) ** (1 / SMOOTH))
        return found


def launches(candidate):
    """Return how many launches a skinny kernel takes."""
    return 2 if candidate.family is SKINNY and candidate.config.slices > 1 else 1


def host_of(shapes):
    """Return the host's seconds for one launch and for two, nearly the least of what was timed."""
    times = {1: [], 2: []}
    for _, found, *_ in shapes:
        for candidate, seconds in found:
            if candidate.family in (SKINNY, SHORT_CLUSTER) and not isinstance(seconds, Held):
                times[launches(candidate)].append(seconds)
    return {n: float(np.quantile(ones, 0.03)) if ones else 0.0 for n, ones in times.items()}


def kept(shapes):
    """Share of shapes on which what the source as it stands selects is within the promise, of those where that was measured."""
    lost = []
    for problem, found, _, device in shapes:
        times = dict(found)
        if (mine := now(device, problem)) in times:
            lost.append(times[mine] / min(times.values()))
    return {"within_5_percent": sum(ratio <= WITHIN for ratio in lost), "of": len(lost)}


def quality(fit, values):
    """Median and spread of the model's errors."""
    errors = abs(np.log(fit.model(values)) - np.log([t for _, t, *_ in fit.rows]))
    middle, most = np.quantile(errors, (0.5, 0.9)).tolist()
    return {"times": len(errors), "median_error": round(middle, 4), "nine_in_ten_below": round(most, 4)}


class Vendor(Fit):
    """cuBLAS, by tiles that stand for its: the cycles of ``VENDOR_BLOCK`` and the constants of ``kernels/cublas/family.py``."""

    FREE = "launch|iteration|load|alone|store|result|piece|second|adding|memory|fetch|cache|slices|layouts"

    def __init__(self, shapes):
        rows = []
        for problem, found, own, device in shapes:
            desc = problem.desc
            if not isinstance(desc, GemmDesc) or min(desc.M, desc.N) <= theirs.MODEL.narrow:
                continue
            for seconds in (
                t for c, t in found if c.family is CUBLAS and (isinstance(t, Held) or (t > CALLED and not isinstance(t, Once)))
            ):
                weighed = [(block, slices) for block, slices, _ in theirs.blocks(device, desc)]
                rows.append(((device, desc, weighed), seconds, seconds, own))
        start = numbers(cost_model.VENDOR_BLOCK)
        self.fixed = {n: v for n, v in start.items() if not re.match(self.FREE, n)}
        start = {n: v for n, v in start.items() if n not in self.fixed}
        super().__init__(start | {name: getattr(theirs.MODEL, name.lower()) for name in ("TIMES", "MORE", "SPLIT_MORE")}, rows)

    def model(self, values):
        """See ``Fit``."""
        all_values = {**self.fixed, **values}
        p = built(cost_model.VENDOR_BLOCK, {n: v for n, v in all_values.items() if not n.isupper()})
        found = []
        for (device, desc, weighed), *_ in self.rows:
            units, lanes, hz = device.compute_units, device.lanes or 128, cost_model.hz(device)
            least = min(
                values["TIMES"] / hz
                * cost_model.block_cycles(desc, b.tile, b.efficiency, b.resident, slices, 4, 4, units, lanes, p)
                + values["SPLIT_MORE"] * (slices > 1)
                for b, slices in weighed
            )  # fmt: skip
            found.append(least + values["MORE"])
        return found


def writing(shapes):
    """``RESULT`` of Hopper's kernel: what it takes beyond its own prediction, by whether C lies on 16 bytes, where C is large."""
    found = {True: [], False: []}
    for problem, timed_here, _, device in shapes:
        for candidate, seconds in timed_here:
            if candidate.family is SGEMM and problem.M * problem.N >= LARGE:
                desc = problem.desc
                more = seconds - predicted(desc, device.compute_units, candidate.config)
                each = more * cost_model.hz(device) * device.compute_units / (problem.M * problem.N)
                found[desc.widths[2] == 4].append(each)
    print("hopper_sgemm: RESULT:", ", ".join(f"{np.median(found[wide]):.2f} of {len(found[wide])}" for wide in (False, True)))


def blocks_and_vendor(training, rest, free):
    """Fit the block kernels and cuBLAS; yield the name of each file, its new numbers, and the error on what was held out."""
    products = Products(training, free)
    if products.names:
        values = products.run()
        print("blocks:", quality(products, values))
        tiles = [{"efficiency": v} if (v := values.get(f"tile {i}")) else {} for i in range(len(BLOCKS))]
        host = {key: values[name] for key, name in (("launch", "host"), ("two", "two")) if name in values}
        cycles = {n: v for n, v in values.items() if n in products.cycles}
        yield "blocks", {"cycles": nested(cycles), "host": host, "tiles": tiles}, quality(Products(rest, free), values)
    drawn_ones = [one for one in training if one[2] == 1.0]
    writing(drawn_ones)
    vendor = Vendor(drawn_ones)
    values = vendor.run()
    print("cuBLAS:", quality(vendor, values))
    factors = {n.lower(): v for n, v in values.items() if n.isupper()}
    yield (
        "cublas",
        {"cycles": nested({n: v for n, v in values.items() if not n.isupper()}), **factors},
        quality(Vendor(rest), values),
    )


def skinny(training, rest):
    """Fit the kernels for short sides, and yield as ``blocks_and_vendor`` does."""
    made, held = {}, {}
    for kernel in cost_model.SKINNY:
        short = Shorts(training, kernel)
        made[kernel] = short.run()
        held[kernel] = quality(Shorts(rest, kernel), made[kernel])
        print(f"{kernel}:", quality(short, made[kernel]))
    yield "skinny", made, held


def nested(values):
    """Return numbers with those called name.key in mappings."""
    found = {}
    for name, value in values.items():
        first, _, key = name.partition(".")
        found |= {first: {**found.get(first, {}), key: value}} if key else {first: value}
    return found


def updated(old, new):
    """Return JSON in which new numbers have replaced old ones."""
    if isinstance(old, list):
        return [updated(*pair) for pair in zip(old, new, strict=True)]
    return {**old, **{k: updated(old[k], v) if isinstance(v, dict | list) else v for k, v in new.items()}}


def main():
    """Fit, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("routes", type=Path, nargs="+")
    parser.add_argument("--tiles", type=Path)
    parser.add_argument("--short", action="store_true", help="fit the kernels for short sides alone")
    parser.add_argument("--free", default="", help="fit only those of the block model's numbers whose names match this pattern")
    parser.add_argument("--keep", action="store_true", help="fit nothing: write how what stands does on what is held out")
    wanted = parser.parse_args()
    Fit.keep = wanted.keep
    records = [read(path) for path in wanted.routes]
    shapes = [(p, found, 1.0, device_of(record)) for record in records for p, found in timed(record)]
    training, rest = ([one for one in shapes if held_out(one[0]) == held] for held in (False, True))
    tiles = timed(read(wanted.tiles)) if wanted.tiles else []
    training += [(p, found, FOREIGN, device_of(records[0])) for p, found in tiles]
    selected = kept(rest)
    print("selected with what stood:", kept(training), "; held out:", selected)
    records = {f"results/{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in wanted.routes}
    fits = skinny(training, rest) if wanted.short else blocks_and_vendor(training, rest, wanted.free)
    for name, new, held in fits:
        content = cost_model.fitted(name)
        if not wanted.keep:
            content = {**updated(content, new), "fitted_to": [*records, f"fitted: {wanted.free or 'all'}"]}
        facts = {
            "card": ", ".join(dict.fromkeys(device.name for *_, device in shapes)),
            "records": records,
            **({"selected": selected} if wanted.keep else {}),
            **held,
        }
        write(Path(cost_model.__file__).parent / "models" / f"{name}.json", {**content, "held_out": facts})


if __name__ == "__main__":
    main()
