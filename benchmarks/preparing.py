"""Measure how preparing kernels slows a step of a PyTorch program, and how long one kind of product holds the GIL.

    python benchmarks/preparing.py cuda:0 --json preparing.json

Steps of one small network are timed in turn alone and while kernels of other kinds are prepared beside them. The factor between
both is the median of the rounds, with its quartiles. Run it twice: at first kernels are compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import toprung.torch
from toprung.torch import background, products


def main() -> None:
    """Measure on the device named, print a line for each figure, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kinds", type=int, default=5, help="kinds of products that are prepared beside the steps of a round")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    device = torch.device(given.device)
    small = device.type == "cpu"
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
    agreed = torch.mm(a[:64], a[:64].T).double()
    torch.testing.assert_close(agreed, a[:64].double() @ a[:64].double().T, rtol=1e-4, atol=1e-4)

    used, prepare = list[float](), products._prepare

    def timed(*what: Any) -> None:
        began = time.thread_time()
        prepare(*what)
        used.append(time.thread_time() - began)

    products._prepare = timed
    rows = iter(range(8, 4096))
    alone, beside = list[float](), list[float]()  # mean seconds of a step, by round
    for _ in range(given.rounds):
        toprung.torch.wait()
        alone.append(_mean(step, threading.Event(), background.PAUSE * given.kinds))
        for n in (next(rows) for _ in range(given.kinds)):
            torch.mm(a[:n], a[:64].T)  # begins to be prepared
        over = threading.Event()
        watcher = threading.Thread(target=lambda over=over: (_drained(), over.set()))
        watcher.start()
        beside.append(_mean(step, over, 600.0))
        watcher.join()
    # of the rounds' own factors, for the pace of a shared machine drifts
    low, middle, high = statistics.quantiles((b / a for a, b in zip(alone, beside, strict=True)), n=4)
    found = {
        "device": torch.cuda.get_device_name(device) if not small else "cpu",
        "torch": torch.__version__,
        "kinds": len(used),
        "step_ms": 1e3 * statistics.median(alone),
        "step_beside_preparing_ms": 1e3 * statistics.median(beside),
        "factor": middle,
        "factor_low": low,
        "factor_high": high,
        "preparing_median_ms": 1e3 * statistics.median(used),
        "preparing_mean_ms": 1e3 * statistics.mean(used),
    }
    for name, value in found.items():
        print(f"{name:26} {value:.3f}" if isinstance(value, float) else f"{name:26} {value}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


def _mean(step: Callable[[], None], over: threading.Event, seconds: float) -> float:
    """Return the mean seconds of steps, of one at least, until the event is set or the time is over."""
    began, count = time.perf_counter(), 0
    while not count or not (over.is_set() or time.perf_counter() - began > seconds):
        step()
        count += 1
    return (time.perf_counter() - began) / count


def _drained() -> None:
    """Return when no job is left, without hurrying them as ``wait`` would."""
    while background.HERE._open:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
