"""Fit what each part of K costs in flight to the times of checks, and test it on every candidate of other products.

    python benchmarks/fit_parts.py results/nvidia-h200/deep-and-odd.json results/nvidia-h100-80gb-hbm3/tune-check-seed*.json

The first record is one of ``benchmarks/deep_and_odd.py``, to test on; the others are of ``toprung tune --check``. Prints how far
predictions are off with the constants of ``kernels/hopper_inflight_split_k/cost.py``, and with those that fit best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from toprung.dispatch.selection import decoded
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_inflight_split_k import cost
from toprung.kernels.hopper_inflight_split_k.config import PartsConfig
from toprung.kernels.hopper_inflight_split_k.family import FAMILY
from toprung.oracle.problems import problem_of

UNITS = 132
"""SMs of the GPUs that the records are of."""
LAUNCHES, PARTS = [0.5e-6 * i for i in range(2, 11)], [0.01e-6 * i for i in range(21)]
"""Seconds that are tried: of the launch that adds, and of a part."""


class Sample(NamedTuple):
    desc: GemmDesc
    config: PartsConfig
    seconds: float


def of_check(record: dict[str, Any]) -> list[Sample]:
    """Return the median of the device's seconds for each product and configuration of a check."""
    times: dict[tuple[GemmDesc, PartsConfig], list[float]] = {}
    for shape in record["shapes"]:
        for one in [*shape["measured"], *shape["again"]]:
            if one["kernel"] == FAMILY.name and one["status"] == "right":
                desc, config = problem_of(shape["problem"]).desc, decoded(one).config
                assert isinstance(desc, GemmDesc) and isinstance(config, PartsConfig)
                times.setdefault((desc, config), []).extend(one["device_seconds"])
    return [Sample(*what, statistics.median(found)) for what, found in times.items()]


def of_candidates(record: dict[str, Any]) -> list[Sample]:
    """Return the times of ``deep_and_odd.py``, whose matrices are without padding; products of a batch have no parts of K."""
    found = []
    for row in record["deep_and_odd"]:
        (batch, m, n, k), turned = row["size"], [x == "T" for x in row["layout"]]
        if batch > 1:
            continue
        widths = (next(w for w in (4, 2, 1) if ld % w == 0) for ld in (m if turned[0] else k, k if turned[1] else n, n))
        desc = GemmDesc(m, n, k, 1, *turned, 0, 0, 0, 0, 0, 0, *widths)
        for config in cost.configs(desc, UNITS):
            if times := row["seconds"].get(f"{FAMILY.name} {config}"):
                found.append(Sample(desc, config, statistics.median(times)))
    return found


def off(of: Iterable[Sample]) -> float:
    """Return the mean of |log(predicted / measured)|^1.5: less is better, and an outlier does not rule."""
    return statistics.fmean(abs(math.log(cost.seconds(s.desc, s.config, UNITS) / s.seconds)) ** 1.5 for s in of)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tested", type=Path)
    parser.add_argument("fitted", type=Path, nargs="+")
    options = parser.parse_args()
    tested = of_candidates(json.loads(options.tested.read_text()))
    fitted = [s for path in options.fitted for s in of_check(json.loads(path.read_text()))]

    def tried(launch: float, part: float) -> float:
        cost.ADDING, cost.PART = launch, part
        return off(fitted)

    now = cost.ADDING, cost.PART
    best = min(itertools.product(LAUNCHES, PARTS), key=lambda constants: tried(*constants))
    for title, constants in (("as they are", now), ("best", best)):
        there = tried(*constants)
        print(f"{title}: ADDING {constants[0]:.2g} s, PART {constants[1]:.2g} s")
        print(f"    off by {there:.4f} over {len(fitted)} times where fitted, {off(tested):.4f} over {len(tested)} where tested")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
