"""What the hardware counts while plain fp32 multiplies on Hopper, ours and cuBLAS's: a record.

    timeout 200 python benchmarks/fp32_counters.py OUT.json [--shapes 8192:NN,16384:NN]

Runs itself under ncu (Nsight Compute), which must be on the path: both results are compared first, then each runs once more,
counted. Everything that ncu's sections have is kept, under ncu's names. Clocks and caches are left alone.
"""

import argparse
import csv
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from hopper_fp32 import AWAY, Compared, named
from split_k import FILL

from toprung import backends, results
from toprung.backends.base import Source
from toprung.build import source_kernel
from toprung.environment import environment
from toprung.errors import BadRecord
from toprung.hopper import Product
from toprung.hopper_fp32 import Plan, choose
from toprung.report import hopper_fp32 as report

SECTIONS = (
    "SpeedOfLight", "SchedulerStats", "WarpStateStats", "InstructionStats", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis",
    "Occupancy", "LaunchStats",
)  # fmt: skip
OWN = ("lay", "ffma")
"""Our launches of a product, as they come."""
RIGHT = "both results agree: "
NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)


def gpu():
    return next(d for d in backends.devices() if d.backend == "cuda")


def counted(texts):
    """Under ncu: each product once by cuBLAS and once by ours, when both agree."""
    from cuda.bindings import driver

    with backends.opened(gpu()) as session:
        fill = source_kernel(Source("benchmarks/fill", FILL, "fill", {}, "cuda"), session)
        for text in texts:
            problem = named(text)
            one, call = Compared(session, fill, problem, 0), Product.of(problem)
            plan, (a, b, c) = Plan(session, call, choose(call, session.device.compute_units)), one.addresses
            runs = (one.vendor(), lambda plan=plan, at=(a, 0, b, 0, c, 0): plan.run(*at, 1.0, 0.0))
            found = []
            for run in runs:
                one.spoil()
                run()
                session.synchronize()
                found.append(one.result())
            if not np.max(np.abs(found[0] - found[1])) < AWAY * problem.K**0.5:
                return 1
            print(RIGHT + text, flush=True)
            for run in runs:
                driver.cuProfilerStart()
                run()
                session.synchronize()
                driver.cuProfilerStop()
    return 0


def launches_of(text):
    """ncu's raw page: (kernel, {metric: value}) of each launch, in order; the line below the heads has units and no ID."""
    found = []
    for row in csv.DictReader(io.StringIO(text[text.find('"ID"') :])):
        if row["ID"].isdigit():
            metrics = {n: v.replace(",", "") for n, v in row.items() if "__" in n}
            values = {n: float(v) for n, v in metrics.items() if NUMBER.fullmatch(v)}
            found.append((row["Kernel Name"].partition("(")[0].strip(), values))
    return found


def shape_of(text, launches):
    """Takes a product's launches from the front: cuBLAS's, of which the longest counts, then ours, which end with the product."""
    theirs = []
    while launches and launches[0][0] not in OWN:
        theirs.append(launches.pop(0))
    while launches and launches[0][0] != OWN[-1]:
        launches.pop(0)
    if not theirs or not launches:
        raise SystemExit(f"{text}: launches are missing")
    both = ("cublas", *max(theirs, key=lambda one: one[1]["gpu__time_duration.sum"])), ("ffma", *launches.pop(0))
    problem = named(text)
    rows = [{"name": name, "kernel": kernel[:120], "counters": counters} for name, kernel, counters in both]
    return {"problem": problem.describe(), "name": text, "flops": problem.flops, "rows": rows}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--shapes", default="8192:NN,16384:NN")
    arguments.add_argument("--counted", action="store_true", help="used under ncu")
    asked = arguments.parse_args()
    texts = asked.shapes.split(",")
    if asked.counted:
        return counted(texts)
    words = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control", "none"]
    words += ["--profile-from-start", "off", "--metrics", ",".join(report.METRICS)]
    words += [word for section in SECTIONS for word in ("--section", section)]
    again = [sys.executable, __file__, str(asked.out), "--shapes", asked.shapes, "--counted"]
    done = subprocess.run([*words, *again], capture_output=True, text=True, check=False)
    if done.returncode or done.stdout.count(RIGHT) != len(texts):
        print(done.stdout[-3000:], done.stderr[-3000:], f"ncu ended with {done.returncode}", sep="\n")
        return 1
    launches = launches_of(done.stdout)
    shapes = [shape_of(text, launches) for text in texts]
    with backends.opened(gpu()) as session:
        command = shlex.join(["python", "benchmarks/fp32_counters.py", *sys.argv[1:]])
        record = results.record(
            command, environment(session), [], kind="hopper-fp32", right=True, shapes=shapes, sustained=0.0
        )  # fmt: skip
        results.write(asked.out, record)
    try:
        print(report.block(["counters", asked.out.name], asked.out.parent))
    except BadRecord as error:  # the record is there: a metric has another name, or is not counted here
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
