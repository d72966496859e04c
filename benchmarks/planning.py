"""Costs of autotuning on first use: seconds of a first call by estimate, by measuring, and in a later program that finds it.

    python benchmarks/planning.py results/<device>/planning.json [--device cuda:0] [--seconds 240]

Each way is a program of its own; the first two begin with no compiled kernel and an empty store. Every call's result is verified
before its time counts. On CUDA it is also seen to that a stream that is being captured is known for one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from toprung import backends
from toprung.dispatch import autotune
from toprung.execute.executor import executor_of
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.library import BoundProduct
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice
from toprung.oracle.problems import problem_of
from toprung.tune.measure import WHOLE

PROBLEMS = {
    "gpu": (Gemm(1100, 1100, 1100), Gemm(1001, 1001, 1001), Gemm(300, 301, 303), Gemm(64, 64, 20000, trans="TN"),
            Gemm(5000, 3000, 40), Gemm(16, 3000, 2000), Gemm(60, 60, 60, batch=500), Gemm(4000, 4000, 4000), Gemv(5000, 3000)),
    "cpu": (Gemm(100, 100, 100), Gemm(64, 64, 2000), Gemv(1000, 1000)),
}  # fmt: skip
WAYS = {"estimate": "by the model", "measure": "measured", "later": "later program"}


def calls(device: str) -> None:
    """One program: first calls of every problem, a line of JSON each."""
    session = backends.session_for(backends.find(device))
    for described in json.loads(sys.stdin.readline()):
        problem = problem_of(described)
        placed = OnDevice(hostile(problem), session)
        start = time.perf_counter()
        made = executor_of(session).product(problem.desc, own=False)
        seconds = time.perf_counter() - start
        bound = BoundProduct(placed, made)
        bound.time(1)
        verdict = Oracle(placed.operands, WHOLE).verify(bound.fetch())
        print(
            json.dumps({"seconds": seconds, "kernel": made.kernels[0], "why": made.why, "wrong": list(verdict.problems)}),
            flush=True,
        )


def captured(device: str) -> str:
    """Return what is wrong with what a session says of a stream's capture; empty: nothing."""
    session = backends.session_for(backends.find(device))
    if session.device.backend != "cuda":
        return ""
    from cuda.bindings import driver

    stream = session.new_queue()
    said = [session.capturing(stream)]
    driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    said.append(session.capturing(stream))
    driver.cuStreamEndCapture(stream)
    said += [session.capturing(stream), session.capturing(None)]
    return "" if said == [False, True, False, False] else f"a stream before, in and after its capture, and the own: {said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=240)
    given = parser.parse_args()
    begin, device = time.monotonic(), backends.find(given.device)
    problems = PROBLEMS["gpu" if device.kind == "gpu" else "cpu"]
    failures, rows = [], [{"problem": p.describe(), **dict.fromkeys(WAYS)} for p in problems]
    if wrong := captured(device.id):
        failures.append(wrong)
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            kept = {k: v for k, v in os.environ.items() if k != "TOPRUNG_STORE"}
            places = {"TOPRUNG_DATA": f"{folder}/data", "TOPRUNG_CACHE": f"{folder}/{'measure' if way == 'later' else way}"}
            where = {**kept, **places, autotune.VARIABLE: "estimate" if way == "estimate" else "measure"}
            left = max(1.0, given.seconds - (time.monotonic() - begin))
            try:
                run = subprocess.run(
                    [sys.executable, __file__, "--calls", device.id], input=json.dumps([p.describe() for p in problems]) + "\n",
                    env=where, stdout=subprocess.PIPE, text=True, timeout=left,
                )  # fmt: skip
                said = run.stdout.splitlines()
            except subprocess.TimeoutExpired as error:
                said = bytes(error.stdout or b"").decode().splitlines()
                failures.append(f"{way}: the time was over after {len(said)} of {len(problems)}")
            for row, line in zip(rows, said, strict=False):
                row[way] = found = json.loads(line)
                name = results.problem_name(row["problem"])
                failures += [f"{name} {way}: {one}" for one in found["wrong"]]
                if way != "estimate" and "very sizes" not in found["why"]:
                    failures.append(f"{name} {way}: {found['why']}")
    results.write(given.out, results.record(
        results.command("python benchmarks/planning.py"), environment(device), [], failures, kind="planning",
        rows=rows,
    ))  # fmt: skip
    for one in failures:
        print(f"WRONG: {one}")
    print(f"{'first call of':24}" + "".join(f"{title + ' s':>16}" for title in WAYS.values()) + "  what ran, measured")
    for row in rows:
        cells = "".join(f"{row[way]['seconds']:16.3f}" if row[way] else f"{'':16}" for way in WAYS)
        print(f"{results.problem_name(row['problem']):24}{cells}  {(row['measure'] or {}).get('kernel', '')}")
    print(f"{len(failures)} wrong, {time.monotonic() - begin:.0f} s")
    return int(bool(failures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--calls"]:
        sys.exit(calls(sys.argv[2]))
    sys.exit(main())
