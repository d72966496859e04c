"""Run and verify every rung of a ladder once on a device, untimed: what sanitizers and debuggers are given.

    python benchmarks/verify.py [--device D] [--ladder kepler] [--sizes 33x35x37] [--limit SECONDS]

With ``--limit`` every rung runs in a process of its own that is ended after so long, so that a kernel that hangs takes nothing else
with it. Exit 1 if any result is wrong.
"""

import argparse
import subprocess
import sys

from toprung import backends
from toprung.cli.common import parse_sizes
from toprung.lab.harness.climb import problem_of, refusals, variants
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, compare
from toprung.lab.rung import ladder, select


def alone(number: int, chosen: argparse.Namespace, device: str) -> bool:
    """Return True if a rung in a process of its own failed."""
    words = [
        sys.executable,
        __file__,
        "--device",
        device,
        "--ladder",
        chosen.ladder,
        "--sizes",
        chosen.sizes,
        "--rungs",
        str(number),
    ]
    try:
        return subprocess.run(words, timeout=chosen.limit, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        print(f"{chosen.ladder}/{number}: ended after {chosen.limit:g} s")
        return True


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device")
    arguments.add_argument("--ladder", default="kepler")
    arguments.add_argument("--sizes", default="33x35x37")
    arguments.add_argument("--rungs", help="numbers with commas; all of them by default")
    arguments.add_argument("--limit", type=float)
    chosen = arguments.parse_args()
    found, device, wrong = ladder(chosen.ladder), backends.find(chosen.device), 0
    numbers = [int(n) for n in chosen.rungs.split(",")] if chosen.rungs else [r.number for r in found.rungs]
    if chosen.limit:
        return int(sum(alone(n, chosen, device.id) for n in numbers) > 0)
    if reasons := [line for line in refusals(found.rungs, device) if any(r.needs(device) for r in found.rungs)]:
        print(*reasons, sep="\n")
    with backends.opened(device) as session:
        for size in parse_sizes(chosen.sizes):
            plan = ComparisonPlan(samples={"warm": 0})
            rows = plan.rows(variants(select(found.rungs, numbers), device))
            for _ in compare(PlacedProblem(problem_of(found, size), session), rows, plan):
                pass
            wrong += not rows  # nothing was verified
            for row in rows:
                detail = f", grade {row.verdict.grade:.3g}" if row.verdict else ""
                print(f"{found.name}/{row.label} at {size}: {row.note or 'right'}{detail}", flush=True)
                wrong += bool(row.note)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
