"""Tiles of fp32x that only a tuner tries, on a GPU: each verified on hostile operands, then timed beside what is taken untuned.

    python benchmarks/fp32x_tuned.py OUT.json [--draws 12] [--seconds 240] [--device cuda:0]

First a stored entry of another kernel text has to be proved and then followed by a call of the library. What crashes or hangs is
named and takes nothing else with it. Ends with one table; exit status 1 if anything was wrong. The user's store is left alone.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import toprung
from toprung import backends
from toprung.dispatch.heuristic import select_own
from toprung.dispatch.select import unsuited
from toprung.dispatch.selection import Candidate
from toprung.gemm.classes import class_of
from toprung.kernels.hopper_fp32x.config import Fp32xConfig, Variant
from toprung.kernels.registry import family
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.oracle.gemm import Gemm
from toprung.store import Entry, Machine, Store
from toprung.tune.executors.local import LocalLane
from toprung.tune.space import CallSpace
from toprung.tune.trial import Trial

SHAPES = (
    Gemm(1024, 1024, 1024), Gemm(4096, 4096, 4096), Gemm(1000, 1001, 1002, alpha=0.7, beta=1.3, trans="TT"),
    Gemm(300, 260, 130, trans="NT"), Gemm(512, 512, 16384), Gemm(129, 65, 4000, beta=-1.0, trans="TN"),
    Gemm(256, 256, 256, batch=64),
)  # fmt: skip


def proved(device) -> str:
    """Return what is wrong with the way of a stale entry through the library; empty: nothing."""
    candidate = Candidate(family("hopper_fp32x"), Fp32xConfig(Variant(CONSUMERS=1, BN=64, STAGES=4, GROUP=4)))
    problem = Gemm(700, 500, 900)
    Store.default().add(
        Entry(Machine.of(device), class_of(problem.desc), problem.describe(), candidate.encode(), "another text", (1e-3,))
    )  # fmt: skip
    rng = np.random.default_rng(0)
    a, b = rng.random((700, 900), np.float32), rng.random((900, 500), np.float32)
    found = toprung.matmul(a, b, own=True, device=device, precision="fp32x")
    receipt = toprung.last_receipt()
    proofs = Store.default().proofs(Machine.of(device))
    if str(candidate.config) not in receipt.kernels[0] or [p.message for p in proofs] != [""]:
        return f"it was not proved and followed: {receipt} {proofs}"
    return "" if np.allclose(found, a.astype(np.float64) @ b, rtol=1e-5) else "the result is wrong"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--device", default="cuda:0")
    given = parser.parse_args()
    begin, device = time.monotonic(), backends.find(given.device)
    if reason := unsuited(device, SHAPES[0].desc, "fp32x"):
        sys.exit(reason)
    os.environ.pop("TOPRUNG_STORE", None)
    failures, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TOPRUNG_DATA"] = folder
        if wrong := proved(device):
            failures.append(f"a stale entry: {wrong}")
            print(f"WRONG: {failures[-1]}", flush=True)
        os.environ["TOPRUNG_STORE"] = "off"  # what is taken untuned
        for problem in SHAPES:
            if time.monotonic() - begin > given.seconds:
                failures.append(f"{problem}: the time was over")
                break
            lane, rng = LocalLane(device), random.Random(1)
            desc = problem.desc
            space, own = CallSpace(device, desc, precision="fp32x"), select_own(device, desc, "fp32x").candidate
            drawn = list(dict.fromkeys(c for _ in range(given.draws) if (c := space.draw(rng)) and c != own))
            sampled = [[own, None]]
            for candidate in drawn:
                outcome = lane.run(Trial(problem, (own, candidate), turns=7, least=3))
                last = outcome.sampled[-1] if outcome.sampled else None
                if outcome.trouble or last.status != "right" or outcome.sampled[0].status != "right":
                    said = outcome.trouble or "; ".join(f"{s.status}: {s.message}" for s in outcome.sampled)
                    failures.append(f"{problem} {candidate} {candidate.encode()['options']}: {said}")
                    print(f"WRONG: {failures[-1]}", flush=True)
                    continue
                sampled[0][1] = outcome.sampled[0].median
                sampled.append([candidate, last.median])
            lane.close()
            rows.append({"problem": problem.describe(), "tried": len(drawn),
                         "measured": [{**c.encode(), "seconds": s} for c, s in sampled if s]})  # fmt: skip
    results.write(given.out, results.record(
        f"python benchmarks/fp32x_tuned.py --draws {given.draws}", environment(replace(device)), [], failures, False,
        kind="fp32x-tuned", rows=rows,
    ))  # fmt: skip
    print(f"{'product':28} {'right':>7} {'untuned us':>11} {'best us':>9}  best")
    for row in rows:
        known = sorted(row["measured"], key=lambda m: m["seconds"])
        own, best = (
            row["measured"][0]["seconds"] if known else 0.0,
            known[0] if known else {"seconds": 0.0, "tile": {}, "options": {}},
        )
        name = results.problem_name(row["problem"])
        print(f"{name:28} {max(len(known) - 1, 0):3d}/{row['tried']:3d} {1e6 * own:11.1f} {1e6 * best['seconds']:9.1f}  "
              f"{best['tile']} {best['options']}")  # fmt: skip
    print(f"{len(failures)} wrong, {time.monotonic() - begin:.0f} s")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
