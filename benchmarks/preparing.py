"""Measure how preparing kernels slows steps of a PyTorch program, and for how long it holds the GIL.

    python benchmarks/preparing.py results/nvidia-h200/preparing.json [--device cuda:0]
    taskset -c 0,1 python benchmarks/preparing.py results/nvidia-h200/preparing-2-cores.json    # as if the host had two cores

Steps of one small network are timed in turn alone and while kernels of other kinds are prepared: through a pause of all threads
that prepare, and the job after it. Each of these times is divided by the mean of the times alone before and after it, for the pace
of a shared machine drifts. The factor is the median of all rounds, with its 95 % interval and the rounds' quartiles. The record
names the cores that are threads of one: they slow each other. Run it twice: at first kernels are compiled.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import toprung.torch
from toprung import backends
from toprung.blas import background
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.stats import paired_ratio
from toprung.torch import products

ALONE = 0.15
"""Seconds of steps alone between two rounds, about as long as a round: shorter ones make more rounds of the same minute."""


def main() -> None:
    """Measure on the device named, print a line for each figure, and write them as a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=30.0, help="after which no round begins, but for the first two")
    parser.add_argument("--share", type=float, default=background.SHARE, help="of the time that preparing may hold the GIL")
    given = parser.parse_args()
    session = backends.session_for(backends.find(given.device))
    small = session.device.backend != "cuda"
    device = torch.device("cpu" if small else session.device.id)
    torch.set_num_threads(1)  # on a CPU a core is left for what prepares, as on a GPU's host
    finish: Callable[[], Any] = torch.cuda.synchronize if not small else lambda: None
    toprung.torch.enable(device_types=(device.type,), own=True, min_flops=0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).to(device)
    x = torch.randn(64 if small else 1024, 256, device=device)

    def step() -> None:
        net(x).sum().backward()
        finish()

    step()
    toprung.torch.wait()
    a = torch.randn(4096, 256, device=device)
    first, rows = a[:8], range(12, 4096, 4)  # rows of C on 16 bytes: few kernels
    for _ in range(2):  # PyTorch's, then ours
        torch.testing.assert_close(torch.mm(first, first.T).double(), first.double() @ first.double().T, rtol=1e-4, atol=1e-4)
        toprung.torch.wait()

    used, prepare = list[float](), products._prepare

    def timed(*what: Any) -> None:
        before = background.held()
        prepare(*what)
        used.append(background.held() - before)

    products._prepare = timed
    background.SHARE = given.share
    alone, beside = [_mean(step, threading.Event(), ALONE)], list[float]()  # mean seconds of a step, by round
    start, size = time.perf_counter(), background.THREADS + 1  # the last job follows a pause of the threads that do the others
    for at in range(0, len(rows) - size, size):
        if len(beside) > 1 and time.perf_counter() - start > given.seconds:
            break
        toprung.torch.wait()  # ends the pause
        known, jobs = set(products.now.entries.every()), list[threading.Event]()
        for n in rows[at : at + size]:
            torch.mm(a[:n], a[:n].T)  # products that differ in two sizes share no range of sizes
            (entry,) = set(products.now.entries.every()) - known
            known.add(entry)
            jobs.append(entry.job.done)
        for done in jobs[:-1]:
            _mean(step, done, 600.0)
        beside.append(_mean(step, jobs[-1], 600.0))
        alone.append(_mean(step, threading.Event(), ALONE))
    around = [(before + after) / 2 for before, after in itertools.pairwise(alone)]
    factor = paired_ratio(beside, around)
    low, _, high = statistics.quantiles((b / a for b, a in zip(beside, around, strict=True)), n=4)
    cores = os.sched_getaffinity(0)
    topology = [Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in sorted(cores)]
    found = {
        "torch": torch.__version__,
        "cores": len(cores),
        "siblings": sorted({one.read_text().strip() for one in topology if one.exists()}),
        "share": given.share,
        "rounds": len(beside),
        "step_ms": 1e3 * statistics.median(alone),
        "step_beside_preparing_ms": 1e3 * statistics.median(beside),
        "factor": factor.value,
        "factor_interval": [factor.low, factor.high],
        "factor_quartiles": [low, high],
        "preparing_median_ms": 1e3 * statistics.median(used),
        "preparing_mean_ms": 1e3 * statistics.mean(used),
    }
    for name, value in found.items():
        print(f"{name:26} {value:.3f}" if isinstance(value, float) else f"{name:26} {value}")
    what = f"python benchmarks/preparing.py results/{session.device.slug}/{given.out.name}"
    results.write(given.out, results.record(what, environment(session), [], preparing=found))


def _mean(step: Callable[[], None], over: threading.Event, seconds: float) -> float:
    """Return the mean seconds of steps, of one at least, until the event is set or the time is over."""
    began, count = time.perf_counter(), 0
    while not count or not (over.is_set() or time.perf_counter() - began > seconds):
        step()
        count += 1
    return (time.perf_counter() - began) / count


if __name__ == "__main__":
    main()
