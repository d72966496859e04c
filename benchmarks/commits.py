"""Two checkouts of toprung beside each other: the same products, in turns, on one device. For changes that should change no speed.

    python benchmarks/commits.py /path/to/old/src --json results/nvidia-h200/commits.json

The checkout that this file lies in is the new one. With ``--old-env`` one checkout can be both, the old side with another compiler:

    python benchmarks/commits.py src --old-env LD_PRELOAD=/…/libnvrtc.so.12 --json results/nvidia-h200/nvrtc-12.json

 Each runs in a process of its own, on the same operands, through the public
``matmul`` on PyTorch's CUDA tensors; every product is verified against float64 on sampled rows before it is timed.

Device times are of CUDA graphs of several calls, which have no host in them; each sample follows a settling run of the same side,
because the card's clock gives way to what ran before. The host's time is of a call in a loop.

It keeps a loop of its own, for the two sides are programs of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "src"

PRODUCTS = (
    *(f"{precision} {size}" for precision, sizes in {
        "fp32": "NN:1024x1024x1024 NN:4096x4096x4096 TT:4096x4096x4096 NN:16x4096x4096",
        "fp32x": "NN:1024x1024x16384 NN:512x512x512 NN:1024x1024x1024 NN:2048x2048x2048 NT:4096x4096x4096 NN:8192x8192x8192",
        # the products of results/nvidia-h200/shapes.json that are no squares
        "auto": "NT:64*1024x1024x64 NN:64*1024x64x1024 NN:1024*64x64x64 NN:256*128x128x128 NN:64*256x256x256 NN:32*512x512x512 "
                "NN:128x4096x4096 NT:4096x256x7168 NT:64x256x7168 NT:16384x128x2048 NT:4096x1024x1024 NT:4096x3072x1024 "
                "NT:4096x1024x4096 TN:1024x3072x4096",
    }.items() for size in sizes.split()),
)  # fmt: skip
"""Precision and product: layout, batch and sizes as in ``benchmarks/candidates.py``."""
TURNS, SETTLE, SECONDS = 12, 0.1, 0.15
"""An even number of turns. Who runs first is up to 4 % off: each side does in every other turn, and a sample is two turns' mean."""


def read(text: str) -> tuple[str, str, tuple[int, ...], tuple[int, int, int]]:
    """Return precision, layout, batch (empty for one product) and M, N, K of one of ``PRODUCTS``."""
    precision, trans, sizes = re.split("[ :]", text)
    *batch, m, n, k = map(int, re.split("[*x]", sizes))
    return precision, trans, tuple(batch), (m, n, k)


def child() -> None:
    """Answer each line of input, a product's number, with the device's and the host's seconds of a call."""
    import torch

    import toprung

    made = []
    for i, text in enumerate(PRODUCTS):
        precision, trans, batch, (m, n, k) = read(text)
        rng = torch.Generator(device="cuda").manual_seed(i)
        a = torch.randn((*batch, k, m) if trans[0] == "T" else (*batch, m, k), generator=rng, device="cuda")
        b = torch.randn((*batch, n, k) if trans[1] == "T" else (*batch, k, n), generator=rng, device="cuda")
        a, b = (a.mT if trans[0] == "T" else a), (b.mT if trans[1] == "T" else b)
        c = torch.full((*batch, m, n), float("nan"), device="cuda")

        def call(a=a, b=b, c=c, precision=precision):
            toprung.matmul(a, b, out=c, precision=precision, own=True)

        call()
        rows = torch.linspace(0, m - 1, min(m, 32), device="cuda").long()
        exact = a[..., rows, :].double() @ b.double()
        error = float((c[..., rows, :].double() - exact).norm() / exact.norm())
        receipt = toprung.last_receipt()
        assert error < 2e-6, (precision, m, n, k, error)  # NaN is not less
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        calls = max(1, int(2e9 / (math.prod(batch) * m * n * k)))
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()  # allocates what the stream needs
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(calls):
                    call()
        made.append((call, error, receipt.kernels[0], graph, calls))
    runtime = toprung.backends.find("cuda").runtime
    print(json.dumps([{"error": error, "kernel": kernel, "runtime": runtime} for _, error, kernel, _, _ in made]), flush=True)
    for line in sys.stdin:
        call, _, _, graph, calls = made[int(line)]
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        each = start.elapsed_time(end) / 1e3
        for _ in range(max(1, int(SETTLE / each))):
            graph.replay()
        count = max(3, int(SECONDS / each))
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            call()
        host = (time.perf_counter() - begin) / 20
        torch.cuda.synchronize()
        print(json.dumps([start.elapsed_time(end) / 1e3 / count / calls, host]), flush=True)


def main() -> None:
    # not above: the old side has its own toprung, whose laboratory may lie elsewhere
    from toprung import backends
    from toprung.backends import cuda
    from toprung.lab.harness import results
    from toprung.lab.harness.environment import environment
    from toprung.lab.harness.stats import paired_ratio

    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("old", help="the other checkout's src folder")
    words.add_argument("--json", type=Path)
    words.add_argument("--label", default="OLD", help="the other commit, as the record is to name it")
    words.add_argument("--old-env", metavar="NAME=VALUE", default="", help="a variable of the old side's environment")
    given = words.parse_args()
    sides = {}
    for name, source in (("old", given.old), ("new", str(HERE))):
        more = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and not (Path(p) / "toprung").is_dir()]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((source, *more))}
        if name == "old" and given.old_env:
            env |= dict([given.old_env.split("=", 1)])
        sides[name] = subprocess.Popen(
            [sys.executable, __file__, "--child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
    told = {name: json.loads(process.stdout.readline()) for name, process in sides.items()}
    print(*(f"{name}: {one[0]['runtime']}" for name, one in told.items()), sep="\n")
    samples = {name: [[] for _ in PRODUCTS] for name in sides}
    device, clocks = backends.find("cuda"), []
    for turn in range(TURNS):
        for number in range(len(PRODUCTS)):
            for name in sorted(sides, reverse=turn % 2 == 0):
                sides[name].stdin.write(f"{number}\n")
                sides[name].stdin.flush()
                samples[name][number].append(json.loads(sides[name].stdout.readline()))
        clocks.append(cuda.clock_mhz(device))
    for process in sides.values():
        process.stdin.close()
        process.wait()
    rows = []
    print(f"{'product':28} {'kernel':44} {'old ms':>9} {'new / old (95 %)':>24} {'host us':>14}")
    for number, text in enumerate(PRODUCTS):
        seconds = {}
        for name in sides:
            timed = [s for s, _ in samples[name][number]]
            seconds[name] = [(first + second) / 2 for first, second in zip(timed[::2], timed[1::2], strict=True)]
        host = {name: 1e6 * min(h for _, h in samples[name][number]) for name in sides}
        ratio = paired_ratio(seconds["new"], seconds["old"])
        beside = f"{ratio.value:.4f} ({ratio.low:.4f}-{ratio.high:.4f})"
        old = 1e3 * statistics.median(seconds["old"])
        kernel, calls = told["new"][number]["kernel"], f"{host['old']:.1f} {host['new']:.1f}"
        print(f"{text:28} {kernel:44} {old:9.4f} {beside:>24} {calls:>14}")
        rows.append(
            {
                "product": text, "samples": {n: samples[n][number] for n in sides},
                "told": {name: told[name][number] for name in sides}, "new_over_old": [ratio.value, ratio.low, ratio.high],
            }
        )  # fmt: skip
    if given.json:
        what = f"python benchmarks/commits.py {given.label} --json results/{device.slug}/{given.json.name}"
        record = results.record(what, environment(device), [], kind="commits", products=rows, clocks_mhz=clocks)
        results.write(given.json, record)


if __name__ == "__main__":
    child() if "--child" in sys.argv else main()
