"""Longest standstill of a process's other threads while the kernels of a first product are built.

    python benchmarks/standstill.py results/amd-epyc/standstill.json [--device pocl] [--times 7]

Each repetition is a process of its own with empty caches. Its second thread sleeps for half a millisecond, over and over, and
notes of each round the wall time, the time it waited for a CPU (Linux's schedstat) and the CPU time of the thread that builds. That
thread held the interpreter's lock for at most the lesser of its CPU time and of the wall time without the wait. The wall time alone
has other programs of a busy machine in it, which is why the load average is stored, too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import toprung
from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

M, K = 300, 301
ROUND = 0.0005
"""Seconds that the second thread sleeps."""


def child(device):
    """Compute a first product beside a second thread, and print the longest of its rounds."""
    a, over, rounds = np.ones((M, K), np.float32), threading.Event(), []
    builder = time.pthread_getcpuclockid(threading.get_ident())

    def beat():
        waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        last = None
        while not over.is_set():
            now = time.perf_counter(), int(os.pread(waits, 99, 0).split()[1]) * 1e-9, time.clock_gettime(builder)
            if last:
                wall, waited, busy = (after - before for before, after in zip(last, now, strict=True))
                rounds.append({"held": min(wall - waited, busy), "wall": wall, "waited": waited, "busy": busy})
            last = now
            time.sleep(ROUND)

    other = threading.Thread(target=beat)
    other.start()
    start = time.perf_counter()
    c = toprung.matmul(a, a.T, own=True, device=device)
    seconds = time.perf_counter() - start
    over.set()
    other.join()
    if not (c == K).all():
        raise SystemExit("the product is wrong")
    longest = {name: max(rounds, key=lambda one: one[by]) for name, by in (("held", "held"), ("wall", "wall"))}
    print(json.dumps({"seconds": seconds, "rounds": len(rounds), "load": os.getloadavg()[0], "longest": longest}))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--device", default="pocl")
    arguments.add_argument("--times", type=int, default=7)
    chosen = arguments.parse_args()
    device, found = backends.find(chosen.device), []
    for _ in range(chosen.times):
        with tempfile.TemporaryDirectory() as folder:
            empty = dict.fromkeys(("TOPRUNG_CACHE", "TOPRUNG_DATA", "POCL_CACHE_DIR", "CUDA_CACHE_PATH"), folder)
            command = [sys.executable, __file__, "--child", device.id]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env={**os.environ, **empty, "TOPRUNG_STORE": "off"}
            )
        found.append(json.loads(done.stdout))
        held, wall = (1e3 * found[-1]["longest"][name][name] for name in ("held", "wall"))
        print(f"{found[-1]['seconds']:6.2f} s  held {held:6.1f} ms  wall {wall:6.1f} ms  load {found[-1]['load']:.1f}", flush=True)
    held = [one["longest"]["held"]["held"] for one in found]
    print(f"held: median {1e3 * statistics.median(held):.1f} ms, most {1e3 * max(held):.1f} ms")
    what = f"python benchmarks/standstill.py results/{device.slug}/{chosen.out.name}"
    with backends.opened(device) as session:
        results.write(chosen.out, results.record(what, environment(session), [], standstill=found))
    return 0


if __name__ == "__main__":
    sys.exit(child(sys.argv[2]) if sys.argv[1:2] == ["--child"] else main())
