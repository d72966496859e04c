"""Time small, batched and deep fp32 products with the kernels that the estimate takes: what short chains cost.

    python benchmarks/chains.py results/nvidia-h200/chains-small.json

To compare, run it at another commit on the same machine. Kernels are launched by themselves, many in a row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tiles
from toprung import backends
from toprung.dispatch.heuristic import select_own
from toprung.lab.harness import results
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, compare
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import SamplingPlan
from toprung.tune.measure import Trialled

PROBLEMS = (
    "64", "96:TN", "128", "200", "256", "384", "512", "700", "3303x319x11", "28x23x10*488:NT", "39x58x25*11", "382x752x21:NT",
    "2624x59x93:TT", "464x1088x15:TN", "64x64x64*4096", "128x128x128*256", "256x256x256*64", "1024x1024x64*64:NT",
    "1024x64x1024*64", "1000x1000x1000*8", "1500x1500x300*4", "511x2049x2363", "1273x152x2589", "300x300x20000",
)  # fmt: skip
PLAN = ComparisonPlan(("held",), {"held": 5}, {"held": SamplingPlan(sample_seconds=0.004, held=True)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    rows = {}
    with backends.opened(backends.find(options.device)) as session:
        for text in PROBLEMS:
            problem = tiles.parse(text)
            candidate = select_own(session.device, problem.desc).candidate
            (row,) = timed = PLAN.rows([Trialled(candidate)])
            for _ in compare(PlacedProblem(problem, session), timed, PLAN):
                pass
            if row.measurement is None:
                raise SystemExit(f"{text}: {candidate}: {row.note}")
            rows[text] = [row.measurement.median, str(candidate)]
            print(f"{text:20} {1e6 * rows[text][0]:9.1f} µs  {rows[text][1]}", flush=True)
        what = f"python benchmarks/chains.py results/{session.device.slug}/{options.out.name}"
        results.write(options.out, results.record(what, environment(session), [], chains=rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
