"""Fit the cost models of in flight, its parts of K included, to recorded times, and test them on products held out.

    python benchmarks/fit_inflight.py results/nvidia-h200/inflight.json results/nvidia-h200/deep-and-odd.json \\
        results/nvidia-h200/tune-check-seed{211,229}.json results/nvidia-h100-80gb-hbm3/inflight.json \\
        results/nvidia-h100-80gb-hbm3/tune-check-seed{57,61}.json

Records are of ``benchmarks/candidates.py --shapes deep,drawn`` and ``toprung tune --check``. A third
of the products, by a hash of each, is held out. Each device counts as much as any other, each time of it alike; a soft loss keeps
outliers from deciding, and a weak pull keeps numbers that the data do not determine where they were. Prints the constants of
``kernels/hopper_fp32x/cost.py`` to be put into the source, and errors before
and after.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_fp32x import cost
from toprung.kernels.hopper_fp32x.config import tiles
from toprung.oracle.problems import problem_of
from toprung.tune.rows import read as read_rows

UNITS = 132
"""SMs of the GPUs that the records are of."""
WEIGHED = {"hopper_inflight": cost.in_flight_configs, "hopper_inflight_split_k": cost.parts_configs}
"""Configurations that are weighed for a product, by the family's name."""
NUMBERS = ("COPY", "ALONE", "AGAIN", "LAUNCH", "MET", "MEET", "PASS", "ADDING", "PART")
"""Constants of the model beside ``TIMES`` and ``SHARES``; ``MEMORY_RATE`` is held."""
SINGLE = "float32", "float32"
"""Types whose share is 1 by definition."""
WORST, SOFT, PULL = 1.6, 0.08, 0.3
"""Times the best of its product from which a time is left out; errors from which they count less; weight of where numbers were."""


class Sample(NamedTuple):
    """A time of a candidate for a product, by its family's name."""

    device: str
    family: str
    desc: GemmDesc
    config: Any
    seconds: float
    tested: bool


def held_out(product: str) -> bool:
    """Return True if a product is in the third that nothing is fitted to: decided by a hash, so always the same."""
    return int(hashlib.sha256(product.encode()).hexdigest(), 16) % 3 == 0


def shares(desc: GemmDesc, config: Any) -> bool:
    """Return True for a time of before there were long rings, of a block that has an SM to itself now."""
    alone = None if config.is_alone else cost.with_long_ring(config)
    return alone is not None and cost.fits(alone, tiles(desc, alone) * config.k_parts, UNITS)


def of_check(record: dict[str, Any]) -> list[Sample]:
    """Return the medians of the device's seconds; of a candidate that was sampled twice, what lies between both."""
    found, device = [], record["environment"]["device"]["name"]
    for shape, timed in zip(record["shapes"], read_rows(record), strict=True):
        desc, times = problem_of(shape["problem"]).desc, defaultdict(list)
        for row in timed:
            if row.status == "right" and row.device:
                times[row.candidate].append(row.device)
        medians = {c: statistics.median(some) for c, some in times.items()}
        for candidate, seconds in medians.items():
            if candidate.kernel in WEIGHED and seconds < WORST * min(medians.values()):
                assert isinstance(desc, GemmDesc)
                if shares(desc, candidate.config):
                    continue
                tested = held_out(str(shape["problem"]))
                found.append(Sample(device, candidate.kernel, desc, candidate.config, seconds, tested))
    return found


def of_rows(record: dict[str, Any], rows: list[dict[str, Any]]) -> list[Sample]:
    """Return the times of candidates by their names, of matrices without padding."""
    found, device = [], record["environment"]["device"]["name"]
    for row in rows:
        (batch, m, n, k), turned = row["size"], [x == "T" for x in row["layout"]]
        strides = (m * k, k * n, m * n) if batch > 1 else (0, 0, 0)
        widths = (next(w for w in (4, 2, 1) if ld % w == 0) for ld in (m if turned[0] else k, k if turned[1] else n, n))
        desc = GemmDesc(m, n, k, batch, *turned, 0, 0, 0, *strides, *widths)
        medians = {name: statistics.median(times) for name, times in row["seconds"].items()}
        for family, weighed in WEIGHED.items():
            for config in weighed(desc, UNITS):
                seconds = medians.get(f"{family} {config}", medians.get(str(config)) if family == "hopper_inflight" else None)
                if seconds and seconds < WORST * min(medians.values()):
                    tested = held_out(f"{row['size']} {row['layout']}")
                    found.append(Sample(device, family, desc, config, seconds, tested))
    return found


def samples(record: dict[str, Any]) -> list[Sample]:
    """Return what a record has of the two families."""
    rows = record.get("candidates") or record.get("inflight") or record.get("deep_and_odd")
    return of_rows(record, rows) if rows else of_check(record)


def numbers() -> NDArray[np.float64]:
    """Return the models' constants: logarithms of what is positive, and behind them the powers of ``SHARES``."""
    found = [x for pair in cost.TIMES.values() for x in pair]
    found += [share for types, (share, _) in cost.SHARES.items() if types != SINGLE]
    found += [getattr(cost, name) for name in NUMBERS]
    return np.concatenate([np.log(found), [wider for types, (_, wider) in cost.SHARES.items() if types != SINGLE]])


def use(values: NDArray[np.float64]) -> None:
    """Make ``values``, as ``numbers`` has them, the constants of the models."""
    powers = len(cost.SHARES) - 1
    rest, wider = iter(np.exp(values[:-powers]).tolist()), iter(values[-powers:].tolist())
    cost.TIMES = {block: (next(rest), next(rest)) for block in cost.TIMES}
    cost.SHARES = {types: (1.0, 0.0) if types == SINGLE else (next(rest), next(wider)) for types in cost.SHARES}
    for name in NUMBERS:
        setattr(cost, name, next(rest))


def logs(of: list[Sample]) -> NDArray[np.float64]:
    """Return the logarithms of predicted over measured seconds."""
    return np.array([math.log(cost.seconds(s.desc, s.config, UNITS) / s.seconds) for s in of])


def quality(of: list[Sample]) -> str:
    """Return the median errors by device."""
    errors, words = abs(logs(of)), []
    for device in sorted({s.device for s in of}):
        mine = [e for e, s in zip(errors, of, strict=True) if s.device == device]
        words.append(f"{device}: {len(mine)} times, median {np.median(mine):.3f}, nine in ten below {np.quantile(mine, 0.9):.2f}")
    return "; ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+")
    options = parser.parse_args()
    every = [s for path in options.records for s in samples(json.loads(path.read_text()))]
    fitted, tested = ([s for s in every if s.tested == held] for held in (False, True))
    counts = {device: sum(s.device == device for s in fitted) for device in {s.device for s in fitted}}
    weights = np.array([math.sqrt(len(fitted) / len(counts) / counts[s.device]) for s in fitted])

    start = numbers()
    print(f"before: fitted {quality(fitted)}\n        held out {quality(tested)}")

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        use(x)
        return np.concatenate([weights * logs(fitted), PULL * (x - start)])

    best = least_squares(errors, start, loss="soft_l1", f_scale=SOFT, max_nfev=30)
    use(best.x)
    print(f"after:  fitted {quality(fitted)}\n        held out {quality(tested)}")
    print("TIMES", {block: tuple(float(f"{x:.3g}") for x in pair) for block, pair in cost.TIMES.items()})
    print("SHARES", {types: (float(f"{x:.2g}"), round(wider, 3)) for types, (x, wider) in cost.SHARES.items()})
    print(*(f"{name} {getattr(cost, name):.3g}" for name in NUMBERS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
