"""Run and verify every rung of a ladder once on a device, untimed: what sanitizers and debuggers are given.

    python benchmarks/verify.py [--device D] [--ladder kepler] [--sizes 33x35x37]

Exit 1 if any result is wrong.
"""

import argparse
import sys

from toprung import backends
from toprung.cli.common import parse_sizes
from toprung.climb import climb, entries, problem_of
from toprung.rung import ladder


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device")
    arguments.add_argument("--ladder", default="kepler")
    arguments.add_argument("--sizes", default="33x35x37")
    chosen = arguments.parse_args()
    found, device, wrong = ladder(chosen.ladder), backends.find(chosen.device), 0
    with backends.opened(device) as session:
        for size in parse_sizes(chosen.sizes):
            rows = entries(found.rungs, device, None)
            for _ in climb(problem_of(found, size), rows, session, samples=0):
                pass
            for entry in rows:
                print(f"{found.name}/{entry.label} at {size}: {entry.failure or 'right'}")
                wrong += bool(entry.failure)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
