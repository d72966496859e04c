"""Host cost of a call: a plan, a warm matmul, the bare launch beneath; of ``import toprung``, and of a first product.

    python benchmarks/overhead.py results/nvidia-h200/overhead.json [--device cuda:0] [--size 64]
    python benchmarks/overhead.py results/nvidia-h200/overhead-torch.json --torch [--device cuda:0]

With ``--torch``: products of PyTorch's that ``toprung.torch`` leaves to it, 16×16×16, and others that it takes, by PyTorch alone
and with the overrides in Python and in C++, in turns; ``python -m toprung.torch --build`` has to have run. Results are checked
first, and that products are left and taken as the row says. Each is divided by PyTorch's of the same turn: the median of these
ratios, with its interval. PyTorch's is timed twice, so that the ratio of equal calls says how far the others can be trusted.

Launches on CUDA and calls like an earlier one are C++'s where ``python -m toprung.torch --build`` has run, or the wheel has it.

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
from dataclasses import asdict
from pathlib import Path

import numpy as np

import toprung
from toprung import backends
from toprung.backends import native_plan
from toprung.execute.executor import executor_of
from toprung.gemm.desc import GemmDesc
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.stats import paired_ratio

BURSTS, CALLS, IMPORTS = 41, 200, 21

OF_TORCH, CALLS_OF_TORCH = 2001, 50
"""Bursts with ``--torch``, short ones, for the pace of a shared host drifts; 10⁵ calls of each kind."""


def microseconds(calls, wait, bursts=BURSTS, count=CALLS, around=lambda name: contextlib.nullcontext()):
    """Return the microseconds per call of each call's bursts of ``count``; every burst is one call's, in turns.

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
                for _ in range(count):
                    call()
                times[name].append((time.perf_counter() - start) / count * 1e6)
                wait()
    return times


def spread(found):
    """Return the median burst, and the fastest and slowest tenth."""
    return {
        "median": statistics.median(found),
        "low": sorted(found)[len(found) // 10],
        "high": sorted(found)[-1 - len(found) // 10],
    }


def of_torch(device, bursts):
    """Return rows of PyTorch's products that stay its own or are taken: by PyTorch alone, and with either override."""
    import torch

    import toprung.torch
    from toprung.blas import background
    from toprung.torch import bridge

    native = bridge.library()
    if native is None:
        sys.exit("there is no override in C++: python -m toprung.torch --build")
    place = f"cuda:{device.handle}" if device.backend == "cuda" else "cpu"
    kind = place.partition(":")[0]

    def drawn(*shape):
        return torch.rand(shape, device=place) - 0.5

    a, b, grad = drawn(16, 16).requires_grad_(), drawn(16, 16).requires_grad_(), drawn(16, 16)
    middle, large, many, bias = drawn(768, 768), drawn(1024, 1024), drawn(8, 256, 256), drawn(768)

    def gradients():
        return torch.autograd.grad(torch.mm(a, b), (a, b), grad)[0]

    def in_this_thread():
        with torch.autograd.set_multithreading_enabled(False):
            return gradients()

    small = {
        "mm 16³": lambda: torch.mm(a.detach(), b.detach()),
        "mm 16³ and its gradients": gradients,  # a thread of the device's computes them: waking it takes longer, or less, by chance
        "mm 16³ and its gradients, in one thread": in_this_thread,
    }
    wide = {
        "mm 768³": (lambda: torch.mm(middle, middle), lambda: middle.double() @ middle.double()),
        "mm 1024³": (lambda: torch.mm(large, large), lambda: large.double() @ large.double()),
        "addmm 768³": (lambda: torch.addmm(bias, middle, middle), lambda: bias.double() + middle.double() @ middle.double()),
        "bmm 8×256³": (lambda: torch.bmm(many, many), lambda: many.double() @ many.double()),
    }
    # own=True: the host's time does not depend on whether the device would gain. Taken first: until a kernel has been prepared
    # its cost is not known, and products that are left are looked up in Python
    verdicts = {"taken": (True, 0), "too small": (False, 10**9), "looked up": (False, 0)}
    by_pytorch, overrides = ("PyTorch", "PyTorch again"), {"PyTorch": None, "PyTorch again": None, "Python": None, "C++": native}

    @contextlib.contextmanager
    def around(name):
        override, verdict, _ = name
        found, bridge.library = bridge.library, lambda: overrides[override]
        own, least = verdicts[verdict]
        # settings of its own for each override, which counts what it has decided itself
        settings = {"device_types": (kind,), "own": own, "min_flops": least + (override == "Python")}
        with contextlib.nullcontext() if override in by_pytorch else toprung.torch.use(**settings):
            for _ in range(CALLS // 10):  # code that was registered just now is not in the caches
                calls[name]()
            wait()
            yield
        bridge.library = found

    def wait():
        if kind == "cuda":
            torch.cuda.synchronize()
        background.HERE.wait()  # for kernels that were begun; toprung.torch.wait would also prepare those of products that are left

    calls = {
        (override, verdict, product): call
        for verdict in verdicts
        for product, call in (small if verdict != "taken" else {name: call for name, (call, _) in wide.items()}).items()
        for override in overrides
    }
    alone = {name: call() for name, call in small.items()} | {name: exact() for name, (_, exact) in wide.items()}
    entered, library = {}, str(Path(toprung.__file__).parent)
    for name, call in calls.items():
        override, verdict, product = name
        with around(name):
            call()  # the first one that is taken may enter Python, later ones need not
            before, seen = toprung.torch.report().taken, []
            sys.setprofile(lambda frame, event, _, seen=seen: seen.append(frame.f_code.co_filename) if event == "call" else None)
            made = call()
            sys.setprofile(None)
            entered[name] = sum(file.startswith(library) for file in seen)
            taken = toprung.torch.report().taken - before
        expected = alone[product]
        right = (
            torch.linalg.norm(made - expected) <= 1e-6 * torch.linalg.norm(expected) if verdict == "taken" else made.equal(expected)
        )
        if not right or taken != (verdict == "taken" and override not in by_pytorch):
            sys.exit(f"{name}: {'' if right else 'the result is wrong, and '}{taken} products were taken")
    times = {}
    for which in dict.fromkeys(name[1:] for name in calls):  # the overrides take turns, on one product
        of_one = {name: call for name, call in calls.items() if name[1:] == which}
        times |= microseconds(of_one, wait, bursts, CALLS_OF_TORCH, around)
    if any(row.taken for row in toprung.torch.report().rows if row.problem == "16×16×16"):
        sys.exit("products of 16×16×16 were taken in the end: fewer bursts")
    return [
        {
            "call": f"{product}, {verdict}",
            "arrays": override,
            "python": entered[override, verdict, product],
            "microseconds": spread(found),
            "ratio": asdict(paired_ratio(found, times["PyTorch", verdict, product])),
        }
        for (override, verdict, product), found in times.items()
    ]


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
    arguments.add_argument("--torch", action="store_true")
    arguments.add_argument("--bursts", type=int, default=OF_TORCH, help="of --torch")
    chosen = arguments.parse_args()
    device = backends.find(chosen.device)
    session = backends.session_for(device)
    what = f"python benchmarks/overhead.py results/{device.slug}/{chosen.out.name}"
    if chosen.torch:
        rows = of_torch(device, chosen.bursts)
        for row in rows:
            taking, frames, ratio = row["microseconds"]["median"], row["python"], [f"{one:.3f}" for one in row["ratio"].values()]
            print(
                f"{row['arrays']:8s} {row['call']:52s} {taking:8.2f} µs, {' '.join(ratio)} of PyTorch's, {frames} Python functions"
            )
        results.write(
            chosen.out, results.record(f"{what} --torch --bursts {chosen.bursts}", environment(session), [], overheads=rows)
        )
        return 0
    launch, _memory = bare(session, chosen.size)
    found = microseconds({"the launch alone": launch}, session.synchronize)
    rows = [{"call": name, "arrays": "–", "microseconds": spread(times)} for name, times in found.items()]
    for arrays, operands, wait in kinds(device, session, chosen.size):
        calls = calls_on(arrays, *operands)
        for name, call in calls.items():
            made = [call() for _ in range(4)][-1]  # the last ones enter no Python where C++ can start them
            assert not hasattr(made, "sum") or float(made.sum()) == chosen.size**3, name
        rows += [
            {"call": name, "arrays": arrays, "microseconds": spread(times)} for name, times in microseconds(calls, wait).items()
        ]
    loading, first, launcher = imports(), first_product(), "Python" if native_plan.entry() is None else "C++"
    print(f"launches by {launcher}")
    for row in rows:
        print(f"{row['arrays']:10s} {row['call']:28s} {row['microseconds']['median']:8.1f} µs")
    print(f"import numpy {loading['numpy']:.3f} s, import toprung {loading['toprung']:.3f} s, first product {1e3 * first:.1f} ms")
    more = {"imports": loading, "first_product": first, "size": chosen.size, "launcher": launcher}
    results.write(chosen.out, results.record(what, environment(session), [], overheads=rows, **more))
    return 0


if __name__ == "__main__":
    sys.exit(main())
