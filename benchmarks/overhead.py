"""Host cost of a call: a plan, a warm matmul, the bare launch beneath; of ``import toprung``, and of a first product.

    python benchmarks/overhead.py results/nvidia-h200/overhead.json [--device cuda:0] [--size 64]
    python benchmarks/overhead.py results/nvidia-h200/overhead-left.json --left [--device cuda:0]

With ``--left``: products of PyTorch's, 16×16×16, that ``toprung.torch`` leaves to it, by PyTorch alone and with the overrides in
Python and in C++, in turns; ``python -m toprung.torch --build`` has to have run.

Calls are made in bursts without waiting for the device, on operands so small that it keeps up; the median burst counts, and the
calls on one kind of array take turns burst by burst. On CUDA the operands are PyTorch tensors (and CuPy arrays where it is
installed), elsewhere pyopencl and NumPy arrays; NumPy's default is its own BLAS. Imports are of fresh processes, in turns.
"""

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import toprung
from toprung import backends
from toprung.execute.executor import executor_of
from toprung.gemm.desc import GemmDesc
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

BURSTS, CALLS, IMPORTS = 41, 200, 21

OF_LEFT = 501
"""Bursts with ``--left``: 10⁵ calls of each kind."""


def microseconds(calls, wait, bursts=BURSTS, around=lambda name: contextlib.nullcontext()):
    """Return each call's median burst, and the fastest and slowest tenth; every burst is one call's, in turns.

    The order is drawn anew each time: a call suffers from the threads that the one before has left spinning. A burst runs in the
    context that ``around`` returns for its name.
    """
    times, draw = {name: [] for name in calls}, random.Random(0)
    for name, call in calls.items():
        with around(name):
            for _ in range(CALLS):
                call()
            wait()
    for _ in range(bursts):
        for name, call in draw.sample(list(calls.items()), len(calls)):
            with around(name):
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
                wait()
    return {
        name: {"median": statistics.median(found), "low": sorted(found)[bursts // 10], "high": sorted(found)[-1 - bursts // 10]}
        for name, found in times.items()
    }


def left(device):
    """Return rows of products of PyTorch's that stay its own: by PyTorch alone, and with either override, each by its verdict."""
    import torch

    import toprung.torch
    from toprung.torch import bridge

    native = bridge.library()
    if native is None:
        sys.exit("there is no override in C++: python -m toprung.torch --build")
    place = f"cuda:{device.handle}" if device.backend == "cuda" else "cpu"
    kind = place.partition(":")[0]
    a, b, grad = (torch.rand(16, 16, device=place, requires_grad=i < 2) for i in range(3))
    products = {
        "mm": lambda: torch.mm(a.detach(), b.detach()),
        "mm and its gradients": lambda: torch.autograd.grad(torch.mm(a, b), (a, b), grad)[0],
    }
    verdicts, overrides = {"too small": None, "looked up": 0}, {"PyTorch": None, "Python": None, "C++": native}

    @contextlib.contextmanager
    def around(name):
        override, verdict, _ = name
        found, bridge.library = bridge.library, lambda: overrides[override]
        settings = {"device_types": (kind,), "min_flops": verdicts[verdict]}
        with contextlib.nullcontext() if override == "PyTorch" else toprung.torch.use(**settings):
            for _ in range(CALLS // 10):  # code that was registered just now is not in the caches
                calls[name]()
            wait()
            yield
        bridge.library = found

    def wait():
        if kind == "cuda":
            torch.cuda.synchronize()
        toprung.torch.wait()

    calls = {(o, v, p): call for o in overrides for v in verdicts for p, call in products.items()}
    expected = {name: call() for name, call in products.items()}
    for name, call in calls.items():
        with around(name):
            assert torch.equal(call(), expected[name[2]]), name
    rows = [
        {"call": f"{product}, {verdict}", "arrays": override, "microseconds": spread}
        for (override, verdict, product), spread in microseconds(calls, wait, OF_LEFT, around).items()
    ]
    assert toprung.torch.report().taken == 0
    return rows


def imports():
    """Return the median seconds of importing NumPy, and toprung, which imports NumPy; each in processes of its own, in turns.

    Modules are compiled beforehand, as those of an installed package are, whatever the environment says.
    """
    program = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
    times = {"numpy": [], "toprung": []}
    with tempfile.TemporaryDirectory() as folder:
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": folder}
        for turn in range(IMPORTS + 1):
            for name, found in times.items():
                command = [sys.executable, "-c", program.format(name)]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
                if turn:  # the first one compiles
                    found.append(float(done.stdout))
    return {name: statistics.median(found) for name, found in times.items()}


def first_product():
    """Return the median seconds of the first product of NumPy arrays, 64×64, after the imports, in fresh processes."""
    program = (
        "import time, numpy as np, toprung; a = np.ones((64, 64), np.float32); a @ a; start = time.perf_counter(); "
        "toprung.matmul(a, a); print(time.perf_counter() - start)"
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": folder}
        for turn in range(IMPORTS + 1):
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
            if turn:
                found.append(float(done.stdout))
    return statistics.median(found)


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


def calls_on(arrays, a, b, c):
    """Return the calls to time on operands of one kind, by name."""
    plan, plan_out = toprung.plan(a, b, own=True), toprung.plan(a, b, c, own=True)
    calls = {
        "plan(a, b, out=c)": lambda: plan_out(a, b, out=c),
        "plan(a, b)": lambda: plan(a, b),
        "matmul(a, b, out=c)": lambda: toprung.matmul(a, b, out=c, own=True),
        "matmul(a, b)": lambda: toprung.matmul(a, b, own=True),
    }
    if arrays == "NumPy":
        default = toprung.plan(a, b)
        calls["default plan(a, b)"] = lambda: default(a, b)
        calls["default matmul(a, b)"] = lambda: toprung.matmul(a, b)
        calls["numpy.matmul(a, b)"] = lambda: np.matmul(a, b)
    if arrays == "PyTorch":
        import torch

        calls["torch.matmul(a, b, out=c)"] = lambda: torch.matmul(a, b, out=c)
    if arrays == "CuPy":
        import cupy

        calls["cupy.matmul(a, b, out=c)"] = lambda: cupy.matmul(a, b, out=c)
    return calls


def bare(session, size):
    """The launch alone, on memory of its own."""
    buffers = [session.allocate(4 * size * size) for _ in range(3)]
    desc = GemmDesc(size, size, size, lda=size, ldb=size, ldc=size, align_a=4, align_b=4, align_c=4)
    launch = executor_of(session).product(desc).starter()
    a, b, c = (buffer.handle for buffer in buffers)
    return lambda: launch(a, 0, b, 0, c, 0, 1.0, 0.0, None), buffers


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--device")
    arguments.add_argument("--size", type=int, default=64)
    arguments.add_argument("--left", action="store_true")
    chosen = arguments.parse_args()
    device = backends.find(chosen.device)
    session = backends.session_for(device)
    what = f"python benchmarks/overhead.py results/{device.slug}/{chosen.out.name}"
    if chosen.left:
        rows = left(device)
        for row in rows:
            print(f"{row['arrays']:10s} {row['call']:32s} {row['microseconds']['median']:8.2f} µs")
        results.write(chosen.out, results.record(f"{what} --left", environment(session), [], overheads=rows))
        return 0
    launch, _memory = bare(session, chosen.size)
    found = microseconds({"the launch alone": launch}, session.synchronize)
    rows = [{"call": name, "arrays": "–", "microseconds": spread} for name, spread in found.items()]
    for arrays, operands, wait in kinds(device, session, chosen.size):
        rows += [
            {"call": name, "arrays": arrays, "microseconds": spread}
            for name, spread in microseconds(calls_on(arrays, *operands), wait).items()
        ]
    loading, first = imports(), first_product()
    for row in rows:
        print(f"{row['arrays']:10s} {row['call']:28s} {row['microseconds']['median']:8.1f} µs")
    print(f"import numpy {loading['numpy']:.3f} s, import toprung {loading['toprung']:.3f} s, first product {1e3 * first:.1f} ms")
    results.write(
        chosen.out,
        results.record(what, environment(session), [], overheads=rows, imports=loading, first_product=first, size=chosen.size),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
