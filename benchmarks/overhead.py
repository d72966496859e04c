"""What a call costs on the host: microseconds of Python for a plan, a warm matmul, and the bare launch beneath them.

    python benchmarks/overhead.py results/nvidia-h200/overhead.json [--device cuda:0] [--size 64]

Calls are made in bursts without waiting for the device, on operands so small that it keeps up; the median burst counts. On CUDA the
operands are PyTorch tensors (and CuPy arrays where it is installed), elsewhere pyopencl and NumPy arrays.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import toprung
from toprung import backends
from toprung.execute import engine
from toprung.gemm.desc import GemmDesc
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

BURSTS, CALLS = 41, 200


def microseconds(call, wait):
    """Of one call: median, and the fastest and slowest tenth."""
    for _ in range(CALLS):
        call()
    wait()
    times = []
    for _ in range(BURSTS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
        wait()
    times.sort()
    return {"median": statistics.median(times), "low": times[BURSTS // 10], "high": times[-1 - BURSTS // 10]}


def kinds(device, session, size):
    """Name → three operands and how to wait for them."""
    host = [np.ones((size, size), np.float32) for _ in range(3)]
    if device.backend == "cuda":
        import torch

        yield "PyTorch", [torch.from_numpy(x).to(f"cuda:{device.handle}") for x in host], torch.cuda.synchronize
        try:
            import cupy
        except ImportError:
            return
        with cupy.cuda.Device(device.handle):
            yield "CuPy", [cupy.asarray(x) for x in host], cupy.cuda.runtime.deviceSynchronize
        return
    import pyopencl.array as cla

    yield "pyopencl", [cla.to_device(session.queue, x) for x in host], session.queue.finish
    yield "NumPy", host, lambda: None


def bare(session, size):
    """The engine's launch alone, on memory of its own."""
    buffers = [session.allocate(4 * size * size) for _ in range(3)]
    desc = GemmDesc(size, size, size, lda=size, ldb=size, ldc=size, align_a=4, align_b=4, align_c=4)
    launch = engine.prepare(session, desc).launcher()
    a, b, c = (buffer.handle for buffer in buffers)
    return lambda: launch(a, 0, b, 0, c, 0, 1.0, 0.0, None), buffers


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--device")
    arguments.add_argument("--size", type=int, default=64)
    chosen = arguments.parse_args()
    device = backends.find(chosen.device)
    session = backends.session_for(device)
    launch, _memory = bare(session, chosen.size)
    rows = [{"call": "the launch alone", "arrays": "–", "microseconds": microseconds(launch, session.synchronize)}]
    options = {"own": True} if device.backend == "cuda" else {"own": True, "device": None}
    for arrays, (a, b, c), wait in kinds(device, session, chosen.size):
        plan, plan_out = toprung.plan(a, b, own=True), toprung.plan(a, b, c, own=True)
        calls = {
            "plan(a, b, out=c)": lambda p=plan_out, a=a, b=b, c=c: p(a, b, out=c),
            "plan(a, b)": lambda p=plan, a=a, b=b: p(a, b),
            "matmul(a, b, out=c)": lambda a=a, b=b, c=c: toprung.matmul(a, b, out=c, **options),
            "matmul(a, b)": lambda a=a, b=b: toprung.matmul(a, b, **options),
        }
        if arrays == "PyTorch":
            import torch

            calls["torch.matmul(a, b, out=c)"] = lambda a=a, b=b, c=c: torch.matmul(a, b, out=c)
        if arrays == "CuPy":
            import cupy

            calls["cupy.matmul(a, b, out=c)"] = lambda a=a, b=b, c=c: cupy.matmul(a, b, out=c)
        for name, call in calls.items():
            rows.append({"call": name, "arrays": arrays, "microseconds": microseconds(call, wait)})
    for row in rows:
        print(f"{row['arrays']:10s} {row['call']:28s} {row['microseconds']['median']:8.1f} µs")
    what = f"python benchmarks/overhead.py {chosen.out}"
    results.write(chosen.out, results.record(what, environment(session), [], overheads=rows, size=chosen.size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
