"""Time ``toprung.torch.audit`` of a training step of the GPT-2-like model, as it is and with TF32 switched on.

    python benchmarks/torch_audit.py results/nvidia-h200/torch-audit.json
    python benchmarks/torch_audit.py OUT.json --small --device cpu

Each audit is of one step: forward, loss and backward. The exit status is 1 if the first finds a product in less than fp32, if the
second finds none (a CPU has no TF32, and is asked for the first alone), or if toprung's largest error is above 1.5 times PyTorch's
in fp32.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import torch

import toprung.torch
from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from torch_models import SIZES, SMALL, TOLERATED, Training, arm


def audited(name, training, device):
    """Return what an audit found of a step under the settings of an arm, and the seconds that it took."""
    with arm(name, device, small=False):
        training.forget()
        begin = time.perf_counter()
        found = toprung.torch.audit(lambda: training.step(training.loss).item())
        seconds = time.perf_counter() - begin
    both = [row for row in found.rows if not math.isnan(row.ours)]
    return {
        "seconds": seconds, "products": sum(row.count for row in found.rows), "kinds": len(found.rows),
        "lowered": sum(row.count for row in found.lowered), "hidden": found.hidden,
        "largest": {"pytorch": max(row.error for row in both), "toprung": max(row.ours for row in both)},
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model")
    given = parser.parse_args()

    on_gpu = given.device == "cuda"
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    place = backends.find("cuda:0" if on_gpu else "pocl")
    torch.manual_seed(0)
    training = Training("gpt", SMALL if given.small else SIZES["gpt"], device)
    found = {name: audited(name, training, device) for name in (("fp32", "tf32") if on_gpu else ("fp32",))}

    failures = []
    if found["fp32"]["lowered"]:
        failures.append(f"{found['fp32']['lowered']} products in less than fp32, and nobody asked for that")
    if on_gpu and not found["tf32"]["lowered"]:
        failures.append("TF32 was switched on, and no product was found in it")
    for name, one in found.items():
        if not one["largest"]["toprung"] <= TOLERATED * found["fp32"]["largest"]["pytorch"]:
            failures.append(f"{name}: an error of toprung's products is {one['largest']['toprung']:.1e}")
        print(
            f"{name}: {one['seconds']:.1f} s, {one['products']} products of {one['kinds']} kinds, {one['lowered']} in less than "
            f"fp32; largest error {one['largest']['pytorch']:.1e}, toprung's {one['largest']['toprung']:.1e}"
        )
    what = f"python benchmarks/torch_audit.py results/{place.slug}/{given.out.name}" + " --small" * given.small
    torch_audit = {"title": training.title, **found}
    results.write(given.out, results.record(what, environment(place), [], failures, small=given.small, torch_audit=torch_audit))
    print(*failures, sep="\n", end="\n" if failures else "")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
