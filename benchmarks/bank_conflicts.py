"""Hardware counters of local memory's bank conflicts, for every rung of a ladder: a record.

    python benchmarks/bank_conflicts.py OUT.json [--ladder turing] [--size 1024] [--device cuda:0]

Runs benchmarks/verify.py under ncu (Nsight Compute), which must be on the path, and reads one launch of each rung's own kernel.
"""

import argparse
import csv
import io
import shlex
import subprocess
import sys
from pathlib import Path

from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.climb import variants
from toprung.lab.harness.environment import environment
from toprung.lab.rung import ladder

METRICS = {
    "load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "load_instructions": "smsp__inst_executed_op_shared_ld.sum",
    "store_instructions": "smsp__inst_executed_op_shared_st.sum",
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--ladder", default="turing")
    arguments.add_argument("--size", type=int, default=1024)
    arguments.add_argument("--device", default="cuda:0")
    chosen = arguments.parse_args()
    found, device = ladder(chosen.ladder), backends.find(chosen.device)
    rows = variants(found.rungs, device)
    verify = [sys.executable, str(Path(__file__).with_name("verify.py")), "--device", chosen.device, "--ladder", chosen.ladder]
    words = ["ncu", "--csv", "--clock-control", "none", "--kernel-name", found.routine, "--metrics", ",".join(METRICS.values())]
    done = subprocess.run([*words, *verify, "--sizes", str(chosen.size)], capture_output=True, text=True, check=False)
    table = done.stdout[done.stdout.find('"ID"') :]
    launches: dict[int, dict[str, int]] = {}
    for line in csv.DictReader(io.StringIO(table)):
        name = next((n for n, m in METRICS.items() if m == line["Metric Name"]), None)
        if name:
            launches.setdefault(int(line["ID"]), {})[name] = int(line["Metric Value"].replace(",", ""))
    if done.returncode or len(launches) != len(rows):
        print(done.stdout[-3000:], done.stderr[-3000:], f"{len(launches)} launches of {len(rows)} rows", sep="\n")
        return 1
    counted = [
        {"rung": row.name, "variant": row.variant, "size": chosen.size, **launches[i]}
        for row, i in zip(rows, sorted(launches), strict=True)
    ]
    with backends.opened(device) as session:
        command = shlex.join(["python", "benchmarks/bank_conflicts.py", *sys.argv[1:]])
        results.write(chosen.out, results.record(command, environment(session), [], kind="counters", counted=counted))
    for c in counted:
        print(f"{c['rung']} {c['variant']:12s} loads {c['load_conflicts']:>12,}  stores {c['store_conflicts']:>12,}  ", end="")
        print(f"wavefronts a load {c['load_wavefronts'] / max(c['load_instructions'], 1):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
