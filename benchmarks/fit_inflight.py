"""Fit the in-flight family's cost model to the drawn shapes of a record, and test it on the others.

    python benchmarks/fit_inflight.py results/nvidia-h200/inflight.json
    python benchmarks/fit_inflight.py results/<device>/tune-check-seed*.json --tested results/<device>/tune-check-seed151.json

A record is one of ``benchmarks/inflight.py --parts time,fit``, whose first shapes are for testing, or of ``toprung tune --check``.
Prints the constants of ``kernels/hopper_inflight/cost.py`` and, for each shape of the former, the time of the block that the model
chooses over that of the best. This counts every time alike and fits all constants; what stands in the source was fitted with
the times of an H200 counting as much as an H100's, ``deep-and-odd.json`` among them, and ``MEMORY_RATE`` held.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from toprung.dispatch.selection import decoded
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_inflight import cost
from toprung.kernels.hopper_inflight.config import InflightConfig
from toprung.kernels.hopper_inflight.family import FAMILY
from toprung.oracle.problems import problem_of

SHAPES = 19
"""Shapes of a record that are for testing, its first."""
OF_CHECK = 1 << 30
"""Number that stands for a shape of a check; -1 where it is for testing. The table below is of the others alone."""
OTHERS = "COPY", "ALONE", "SPREAD", "PACKED", "MET", "LAUNCH", "MEET", "MEMORY_RATE"
"""Constants of the model beside TIMES."""
STEPS = 12000
"""Random steps of the fit."""
FASTEST_LAUNCH, FASTEST_MEMORY = 2e-6, 4.6e12
"""Least seconds of a launch, most bytes a second: what cannot be however well it fits."""


class Sample(NamedTuple):
    shape: int
    desc: GemmDesc
    config: InflightConfig
    seconds: float


def samples(record: dict[str, Any], units: int, tested: bool) -> list[Sample]:
    found = []
    for shape in record.get("shapes", ()):
        times: dict[InflightConfig, list[float]] = {}
        for one in [*shape["measured"], *shape["again"]]:
            if one["kernel"] == FAMILY.name and one["status"] == "right" and len(one["device_seconds"]) > 1:
                config = decoded(one).config
                assert isinstance(config, InflightConfig)
                times.setdefault(config, []).extend(one["device_seconds"])
        desc = problem_of(shape["problem"]).desc
        for config, seconds in times.items():
            assert isinstance(desc, GemmDesc)
            found.append(Sample(-1 if tested else OF_CHECK, desc, config, statistics.median(seconds)))
    for i, row in enumerate(record.get("inflight", ())):
        batch, m, n, k = row["size"]
        turned, strides = (row["layout"][0] == "T", row["layout"][1] == "T"), (m * k, k * n, m * n) if batch > 1 else (0, 0, 0)
        desc = GemmDesc(m, n, k, batch, *turned, 0, 0, 0, *strides, 4, 4, 4)
        for config in cost.configs(desc, units):
            if times := row["seconds"].get(str(config)):
                found.append(Sample(i, desc, config, statistics.median(times)))
    return found


def use(at: list[float]) -> None:
    """Make ``at`` the constants of the model."""
    blocks = list(cost.TIMES)
    cost.TIMES = {block: (at[2 * i], at[2 * i + 1]) for i, block in enumerate(blocks)}
    for name, x in zip(OTHERS, at[2 * len(blocks) :], strict=True):
        setattr(cost, name, x)


def off(of: list[Sample], units: int) -> float:
    """Mean of |log(predicted / measured)|^1.5: less is better, and an outlier does not rule."""
    return statistics.fmean(abs(math.log(cost.seconds(s.desc, s.config, units) / s.seconds)) ** 1.5 for s in of)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--tested", type=Path, nargs="*", default=[], help="checks to test on, not fitted to")
    options = parser.parse_args()
    records = [
        (json.loads(path.read_text()), path in options.tested) for path in dict.fromkeys([*options.records, *options.tested])
    ]
    units = 132
    every = [s for record, tested in records for s in samples(record, units, tested)]
    fitted, tested = [s for s in every if s.shape >= SHAPES], [s for s in every if s.shape < SHAPES]

    at = [x for pair in cost.TIMES.values() for x in pair] + [getattr(cost, name) for name in OTHERS]
    best, rng, width = off(fitted, units), random.Random(1), 0.3
    for step in range(STEPS):
        tried = list(at)
        for _ in range(rng.choice((1, 1, 2, 3))):
            tried[rng.randrange(len(tried))] *= math.exp(rng.gauss(0, width))
        if tried[-3] < FASTEST_LAUNCH or tried[-1] > FASTEST_MEMORY:
            continue
        use(tried)
        if (found := off(fitted, units)) < best:
            at, best = tried, found
        if step % (STEPS // 8) == STEPS // 8 - 1:
            width *= 0.6
    use(at)

    print("TIMES", {block: tuple(f"{x:.3g}" for x in pair) for block, pair in cost.TIMES.items()})
    print(*(f"{name} {getattr(cost, name):.2g}" for name in OTHERS))
    print(f"off by {best:.4f} where fitted, {off(tested, units):.4f} where tested")
    for i, row in enumerate(row for record, _ in records for row in record.get("inflight", ())):
        own = [s for s in every if s.shape == i]
        chosen, fastest = min(own, key=lambda s: cost.seconds(s.desc, s.config, units)), min(own, key=lambda s: s.seconds)
        predicted = cost.seconds(chosen.desc, chosen.config, units)
        print(
            f"{'×'.join(map(str, row['size'])):18} {row['layout']} {chosen.config!s:28} {1e6 * chosen.seconds:7.1f} µs"
            f" (predicted {1e6 * predicted:.1f}), best {fastest.config!s:28} {chosen.seconds / fastest.seconds:.2f}"
            + " fitted"
            * (i >= SHAPES)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
