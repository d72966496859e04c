"""Hardware counters of plain fp32 products on Hopper, ours and cuBLAS's: a record.

    timeout 200 python benchmarks/fp32_counters.py OUT.json [--shapes 8192:NN,16384:NN] [--limit 100]

Runs itself under ncu (Nsight Compute), which must be on the path, once for each product: both results are compared first, then
each runs once more, counted. ncu runs it again for every few of the counters, so that a large product takes minutes; one that
takes more than ``--limit`` seconds is left out. Clocks and caches are left alone.
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
from tables import hopper_fp32 as report
from toprung import backends
from toprung.backends.base import Source
from toprung.errors import BadRecord
from toprung.kernels.build import source_kernel
from toprung.kernels.hopper_sgemm.cost import select_variant
from toprung.kernels.hopper_sgemm.launches import SgemmLaunches
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SECTION = "WarpStateStats"
"""Section of ncu on what warps wait for; the rest is counted metric by metric, since a section's many take too many runs."""
TAKEN = "gpu__time_duration.sum"
OWN = ("lay", "ffma")
"""Our launches of a product, as they come."""
RIGHT = "both results agree: "
NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)


def gpu():
    return next(d for d in backends.devices() if d.backend == "cuda")


def counted(text):
    """Under ncu: a product once by cuBLAS and once by ours, when both agree."""
    from cuda.bindings import driver

    with backends.opened(gpu()) as session:
        fill = source_kernel(Source("benchmarks/fill", FILL, "fill", {}, "cuda"), session)
        problem = named(text)
        one, desc = Compared(session, fill, problem, 0), problem.desc
        plan, (a, b, c) = SgemmLaunches(session, desc, select_variant(desc, session.device.compute_units)), one.addresses
        runs = (one.vendor(), lambda: plan.run(a, 0, b, 0, c, 0, 1.0, 0.0))
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
    both = ("cublas", *max(theirs, key=lambda one: one[1][TAKEN])), ("ffma", *launches.pop(0))
    problem = named(text)
    rows = [{"name": name, "kernel": kernel[:120], "counters": counters} for name, kernel, counters in both]
    return {"problem": problem.describe(), "name": text, "flops": problem.flops, "rows": rows}


def store(shapes, path):
    """Write the record with what there is: after each product, since the next may take too long."""
    with backends.opened(gpu()) as session:
        command = shlex.join(["python", "benchmarks/fp32_counters.py", *sys.argv[1:]])
        found = environment(session)
    results.write(path, results.record(command, found, [], kind="hopper-fp32", right=True, shapes=shapes, sustained=0.0))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--shapes", default="8192:NN,16384:NN")
    arguments.add_argument("--limit", type=float, default=100.0)
    arguments.add_argument("--counted", action="store_true", help="used under ncu, with one product")
    asked = arguments.parse_args()
    if asked.counted:
        return counted(asked.shapes)
    words = shlex.split(
        f"timeout -k 5 {asked.limit} ncu --csv --page raw --print-units base --clock-control none --cache-control none"
    )
    words += ["--profile-from-start", "off", "--metrics", ",".join((*report.METRICS, TAKEN)), "--section", SECTION]
    shapes, failed = [], False
    for text in asked.shapes.split(","):
        again = [sys.executable, __file__, str(asked.out), "--shapes", text, "--counted"]
        done = subprocess.run([*words, *again], capture_output=True, text=True, check=False)
        if done.returncode in (124, 137):
            print(f"{text}: not counted in {asked.limit:g} s", flush=True)
            continue
        if done.returncode or RIGHT + text not in done.stdout:
            print(done.stdout[-3000:], done.stderr[-3000:], f"{text}: ncu ended with {done.returncode}", sep="\n")
            failed = True
            continue
        shapes.append(shape_of(text, launches_of(done.stdout)))
        store(shapes, asked.out)
        print(f"{text}: counted", flush=True)
    if not shapes:
        return 1
    try:
        print(report.block(["counters", asked.out.name], asked.out.parent))
    except BadRecord as error:  # the record is there: a metric has another name, or is not counted here
        print(error)
        return 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
