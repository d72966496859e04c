"""Fit the cost models of splitting in flight to recorded times, and test them on held-out products.

    python benchmarks/fit_inflight.py results/nvidia-h200/inflight.json results/nvidia-h200/deep-and-odd.json \\
        results/nvidia-h200/tune-check-seed{211,229}.json results/nvidia-h100-80gb-hbm3/inflight.json \\
        results/nvidia-h100-80gb-hbm3/tune-check-seed{57,61}.json

Records are of ``benchmarks/candidates.py --shapes deep,drawn`` and ``toprung tune --check``. A third
of the products, by a hash of each, is held out. Devices have equal weight, and so have all times of one device. A soft loss limits
the weight of outliers; a weak penalty keeps numbers that the data do not determine where they were. The script writes the numbers
and the errors on held-out products to ``kernels/models/fp32x.json``, with ``--keep`` the errors alone. The numbers of Hopper's
plain fp32 model are set by hand: ``--sgemm`` writes its errors on checks that were not used for that into ``sgemm.json``:

    python benchmarks/fit_inflight.py --sgemm results/nvidia-h100-80gb-hbm3/tune-check-seed{57,61,283,311,347}.json
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from toprung.backends import nvrtc
from toprung.gemm.desc import GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper_fp32x import cost
from toprung.kernels.hopper_fp32x.config import LONG, with_parts
from toprung.kernels.hopper_sgemm.family import FAMILY as SGEMM
from toprung.lab.harness.results import write
from toprung.oracle.problems import problem_of
from toprung.tune.rows import read as read_rows

UNITS = 132
"""SMs of the GPUs that the records are of."""
WEIGHED = {"hopper_inflight": cost.in_slices, "hopper_inflight_split_k": cost.in_parts}
"""Configurations that are weighed for a product, by the family's name."""
NUMBERS = ("copy", "sole", "again", "launch", "met", "meet", "passing", "adding", "part")
"""Numbers of the model beside ``times`` and ``shares``; the others are held."""
HOPPER = replace(nvrtc.device_of("sm_90"), backend="cuda", compute_units=UNITS, clock_mhz=1980.0)
"""A GPU such as those of the records."""
SINGLE = "float32 float32"
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
    stages = LONG.get((config.CONSUMERS, config.BN))
    if config.is_alone or not stages:
        return False
    alone = replace(config, STAGES=stages)
    return block_count(desc, alone) * alone.SLICES * alone.k_parts <= cost.blocks_at_once(alone, UNITS)


def of_check(record: dict[str, Any], kernels: Collection[str] = WEIGHED) -> list[Sample]:
    """Return the medians of the device's seconds; of a candidate that was sampled twice, what lies between both."""
    found, device = [], record["environment"]["device"]["name"]
    for shape, timed in zip(record["shapes"], read_rows(record), strict=True):
        desc, times = problem_of(shape["problem"]).desc, defaultdict(list)
        for row in timed:
            if row.status == "right" and row.device:
                times[row.candidate].append(row.device)
        medians = {c: statistics.median(some) for c, some in times.items()}
        for candidate, seconds in medians.items():
            if candidate.kernel in kernels and seconds < WORST * min(medians.values()):
                assert isinstance(desc, GemmDesc)
                if candidate.kernel in WEIGHED and shares(desc, candidate.config):
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
            for config in itertools.starmap(with_parts, weighed(desc, UNITS)):
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
    """Return the models' numbers: logarithms of what is positive, and behind them the powers of ``shares``."""
    p = cost.FLIGHT
    of_types = [pair for types, pair in p.shares.items() if types != SINGLE]
    found = [*itertools.chain(*p.times.values()), *(share for share, _ in of_types), *(getattr(p, name) for name in NUMBERS)]
    return np.concatenate([np.log(found), [wider for _, wider in of_types]])


def use(values: NDArray[np.float64]) -> dict[str, Any]:
    """Make ``values``, as ``numbers`` has them, the numbers of the models, and return these by their names."""
    p = cost.FLIGHT
    powers = len(p.shares) - 1
    rest, wider = iter(np.exp(values[:-powers]).tolist()), iter(values[-powers:].tolist())
    found: dict[str, Any] = {"times": [[next(rest), next(rest)] for _ in p.times]}
    found["shares"] = {types: [1.0, 0.0] if types == SINGLE else [next(rest), next(wider)] for types in p.shares}
    found |= {name: next(rest) for name in NUMBERS}
    vars(p).update({**found, "times": dict(zip(p.times, found["times"], strict=True))})
    cost.times.cache_clear()
    return found


def logs(of: list[Sample]) -> NDArray[np.float64]:
    """Return the logarithms of predicted over measured seconds."""
    times = (
        (SGEMM.cost(HOPPER, s.desc, s.config) if s.family == SGEMM.name else cost.alone(s.desc, s.config, UNITS)[0], s.seconds)
        for s in of
    )
    return np.array([math.log(predicted / measured) for predicted, measured in times])


def quality(of: list[Sample]) -> dict[str, dict[str, float]]:
    """Return the model's errors by device."""
    errors, found = abs(logs(of)), {}
    for device in sorted({s.device for s in of}):
        mine = [e for e, s in zip(errors, of, strict=True) if s.device == device]
        middle, most = (round(float(np.quantile(mine, q)), 4) for q in (0.5, 0.9))
        found[device] = {"times": len(mine), "median_error": middle, "nine_in_ten_below": most}
    return found


def save(name: str, content: dict[str, Any], paths: list[Path], tested: list[Sample]) -> None:
    """Write a model's file with its errors on held-out products."""
    records = {f"results/{p.parent.name}/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
    content["held_out"] = {"records": records, **quality(tested)}
    write(Path(cost_model.__file__).parent / "models" / f"{name}.json", content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--keep", action="store_true", help="fit nothing: write how what stands does on what is held out")
    parser.add_argument("--sgemm", action="store_true", help="fit nothing: write how plain fp32's model does on all of the records")
    options = parser.parse_args()
    if options.sgemm:
        every = [s for path in options.records for s in of_check(json.loads(path.read_text()), (SGEMM.name,))]
        save("sgemm", cost_model.fitted("sgemm"), options.records, every)
        return 0
    every = [s for path in options.records for s in samples(json.loads(path.read_text()))]
    fitted, tested = ([s for s in every if s.tested == held] for held in (False, True))
    counts = {device: sum(s.device == device for s in fitted) for device in {s.device for s in fitted}}
    weights = np.array([math.sqrt(len(fitted) / len(counts) / counts[s.device]) for s in fitted])

    start, content = numbers(), cost_model.fitted("fp32x")
    print(f"before: fitted {quality(fitted)}\n        held out {quality(tested)}")

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        use(x)
        return np.concatenate([weights * logs(fitted), PULL * (x - start)])

    if not options.keep:
        best = least_squares(errors, start, loss="soft_l1", f_scale=SOFT, max_nfev=30)
        content["in_flight"] |= use(np.array([float(f"{x:.5g}") for x in best.x]))
        print(f"after:  fitted {quality(fitted)}\n        held out {quality(tested)}")
    save("fp32x", content, options.records, tested)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
