"""What the hardware counts while plain fp32 multiplies on Hopper, ours and cuBLAS's: a record.

    timeout 200 python benchmarks/fp32_counters.py OUT.json [--shapes 8192:NN,16384:NN]

Runs itself under ncu (Nsight Compute), which must be on the path: both results are compared first, then each
runs once more, counted.
Which metrics there are is left to ncu's own sections; all of them are kept, under their names. Clocks and caches are left alone.
"""

import argparse
import csv
import io
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from hopper_fp32 import Compared
from split_k import FILL

from toprung import backends, results
from toprung.backends.base import Source
from toprung.build import source_kernel
from toprung.environment import environment
from toprung.hopper import Product
from toprung.hopper_fp32 import Plan, choose
from toprung.routines.gemm import Gemm

SECTIONS = (
    "SpeedOfLight", "SchedulerStats", "WarpStateStats", "InstructionStats", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis",
    "Occupancy", "LaunchStats",
)  # fmt: skip
METRICS = (
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "smsp__thread_inst_executed.sum", "dram__bytes.sum", "lts__t_bytes.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
)  # fmt: skip
"""Beside the sections'."""


def problem_of(text):
    sizes, _, trans = text.partition(":")
    numbers = [int(n) for n in sizes.split("x")]
    return Gemm(*(numbers * 3 if len(numbers) == 1 else numbers), trans=trans or "NN")


def counted(texts):
    """Under ncu: each product once by cuBLAS and once by ours, after both agree."""
    from cuda.bindings import driver

    with backends.opened(next(d for d in backends.devices() if d.backend == "cuda")) as session:
        fill = source_kernel(Source("benchmarks/fill", FILL, "fill", {}, "cuda"), session)
        for text in texts:
            problem = problem_of(text)
            one = Compared(session, fill, problem, 0)
            call = Product.of(problem)
            plan, theirs = Plan(session, call, choose(call, session.device.compute_units)), one.vendor()
            a, b, c = one.addresses
            found = []
            for run in (theirs, lambda plan=plan, at=(a, 0, b, 0, c, 0): plan.run(*at, 1.0, 0.0)):
                run()
                session.synchronize()
                found.append(one.result())
                driver.cuProfilerStart()
                run()
                session.synchronize()
                driver.cuProfilerStop()
            if not np.max(np.abs(found[0] - found[1])) < 1e-4 * problem.K**0.5:
                return 1
    return 0


def table(text):
    """ncu's raw page: (kernel, {metric: value}) of each launch; the second line says units, which are the base ones."""
    rows = list(csv.DictReader(io.StringIO(text[text.find('"ID"') :])))
    launches = []
    for row in rows:
        if not row["ID"].isdigit():
            continue
        values = {}
        for name, value in row.items():
            if "__" in name:
                try:
                    values[name] = float(value.replace(",", ""))
                except ValueError:
                    continue
        launches.append((row["Kernel Name"], values))
    return launches


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
    words += ["--profile-from-start", "off", "--metrics", ",".join(METRICS)]
    words += [word for section in SECTIONS for word in ("--section", section)]
    done = subprocess.run(
        [*words, sys.executable, __file__, "-", "--shapes", asked.shapes, "--counted"], capture_output=True, text=True, check=False
    )
    launches = table(done.stdout)
    if done.returncode or not launches:
        print(done.stdout[-3000:], done.stderr[-3000:], f"exit {done.returncode}, {len(launches)} launches", sep="\n")
        return 1
    # a shape's launches: cuBLAS's own, then ours, which end with the product
    shapes, own = [], []
    for text in texts:
        vendors, ours = [], []
        while launches:
            name, values = launches.pop(0)
            mine = name.split("(")[0].strip() in ("ffma", "lay")
            (ours if mine else vendors).append({"kernel": name[:120], "counters": values})
            if mine and name.startswith("ffma"):
                break
        if not vendors or not ours:
            print(f"{text}: {len(vendors)} launches of cuBLAS's and {len(ours)} of ours")
            return 1
        problem = problem_of(text)
        longest = max(vendors, key=lambda one: one["counters"].get("gpu__time_duration.sum", 0.0))
        own.append((text, longest, ours[-1]))
        shapes.append({
            "problem": problem.describe(), "name": text, "flops": problem.flops,
            "rows": [{"name": "cublas", **longest}, {"name": "ffma", **ours[-1]}],
        })  # fmt: skip
    device = next(d for d in backends.devices() if d.backend == "cuda")
    with backends.opened(device) as session:
        command = shlex.join(["python", "benchmarks/fp32_counters.py", *sys.argv[1:]])
        results.write(
            asked.out,
            results.record(command, environment(session), [], kind="hopper-fp32", right=True, shapes=shapes, sustained=0.0),
        )
    for text, *both in own:
        for one in both:
            stalls = {
                n.split("stalled_")[1].split("_per")[0]: v
                for n, v in one["counters"].items()
                if "issue_stalled_" in n and "per_issue" in n
            }
            first = sorted(stalls.items(), key=lambda s: -s[1])[:5]
            print(text, one["kernel"][:40], f"{one['counters'].get('gpu__time_duration.sum', 0) / 1e3:.0f} us", first)
    return 0


if __name__ == "__main__":
    sys.exit(main())
