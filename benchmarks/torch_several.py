"""Training steps on several GPUs (FSDP2, tensor and sequence parallelism) and products of DTensors: PyTorch fp32, TF32, toprung.

    torchrun --nproc-per-node 2 benchmarks/torch_several.py results/nvidia-h200/torch-several.json
    torchrun --nproc-per-node 2 benchmarks/torch_several.py OUT.json --device cpu --width 64

Gradients and products are compared with float64 first, and arms take turns, as in ``torch_models.py``; a time is the slowest
rank's. A product reads its result once more, for the norm. The first process writes the record and prints the table.
"""

import argparse
import datetime
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import toprung.distributed
from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from torch_models import ARMS, intolerable, listed, measured, table
from torch_programs import Computing, Learning


class Squares(nn.Sequential):
    """A normalisation and two linear layers; returns the mean square of the output."""

    def __init__(self, width):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        loss = super().forward(x).square().mean()
        return loss.full_tensor() if isinstance(loss, DTensor) else loss


class Spread(Learning):
    """A model that is spread over the ranks; gradients are whole ones, averaged over the ranks' inputs."""

    def outcome(self):
        return [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in super().outcome()]

    def exact(self):
        loss, grads = super().exact()
        for grad in grads:
            dist.all_reduce(grad.div_(dist.get_world_size()))
        return loss, grads


def fsdp2(model, mesh):
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model, mesh):
    return parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})


def sequence_parallel(model, mesh):
    cut = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),))
    layers = {
        "0": SequenceParallel(sequence_dim=0), "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }  # fmt: skip
    return parallelize_module(parallelize_module(model, mesh, cut), mesh, layers)


SPLITS = {"fsdp2": fsdp2, "tensor": tensor_parallel, "sequence": sequence_parallel}
CASES = (*SPLITS, "A @ B", "matmul")


def training(name, mesh, width, rows):
    """Return a step that a split distributes, and float64's loss and gradients. FSDP2's ranks have rows of their own each."""
    kind, per = ("FSDP2", " per GPU") if name == "fsdp2" else (f"{name} parallel", "")
    torch.manual_seed(0)
    with torch.device(mesh.device_type):
        model = Squares(width)
        torch.manual_seed(1 + bool(per) * dist.get_rank())
        x = torch.randn(rows, width)
    title = f"{kind}, {width} → {4 * width} → {width}, {rows} rows{per}"
    exact = Spread(title, model, x).exact()
    return Spread(title, SPLITS[name](model, mesh), x), exact


def product(name, mesh, size):
    """Return a product of two DTensors, all three sharded by rows, and float64's rows of this rank."""
    torch.manual_seed(dist.get_rank())
    shape, each = torch.Size((size, size)), torch.Size((size // mesh.size(), size))
    a, b = (
        DTensor.from_local(torch.randn(each, device=mesh.device_type), mesh, [Shard(0)], shape=shape, stride=(size, 1))
        for _ in range(2)
    )
    rows = [Shard(0)]
    multiply = {
        "A @ B": lambda a, b: ((a @ b).redistribute(placements=rows).to_local(),),
        "matmul": lambda a, b: (toprung.distributed.matmul(a, b, out_placements=rows).to_local(),),
    }
    title = f"{'toprung.distributed.matmul' if name == 'matmul' else name} of DTensors by rows, {size}"
    return Computing(title, multiply[name], a, b), Computing(name, multiply["A @ B"], a, b).exact()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--width", type=int, default=4096, help="inputs of the layers; products are of four times that")
    parser.add_argument("--cases", type=listed(CASES), default=CASES)
    parser.add_argument("--seconds", type=float, default=5, help="of all samples of a step")
    given = parser.parse_args()
    given.small = given.device == "cpu"
    device = torch.device(given.device, int(os.environ["LOCAL_RANK"])) if given.device == "cuda" else torch.device("cpu")
    if given.device == "cuda":
        torch.cuda.set_device(device)
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink's multicast
    dist.init_process_group("cpu:gloo,cuda:nccl" if given.device == "cuda" else "gloo")
    mesh = init_device_mesh(given.device, (dist.get_world_size(),))
    place = backends.find(f"cuda:{device.index}" if given.device == "cuda" else "pocl")
    facts = environment(place)
    if given.device == "cuda":
        facts["packages"]["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))

    rows = []
    for name in given.cases:
        given.arms = ["toprung"] if name == "matmul" else ARMS[:3]
        with torch.autograd.set_grad_enabled(name in SPLITS):
            step, exact = training(name, mesh, given.width, given.width) if name in SPLITS else product(name, mesh, 4 * given.width)
        row = {
            "model": name, "mode": f"{mesh.size()} GPUs" if given.device == "cuda" else f"{mesh.size()} processes",
            "title": step.title, "parameters": sum(p.numel() for p in step.parameters),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": facts["commit"],
            **measured("eager", step, exact, place, device, given),
        }  # fmt: skip
        row["failures"] = [f"{name}: {one}" for one in row["failures"] + (name != "matmul") * intolerable([row["errors"]])]
        rows.append(row)
        if dist.get_rank() == 0:
            taken, left = (sum(one[key] for one in row.get("report", {"rows": ()})["rows"]) for key in ("taken", "left"))
            print(f"{name}: {taken} products on toprung's kernels, {left} on PyTorch's", *row["failures"], sep="\n  ")
        del step, exact
    failures = [one for row in rows for one in row["failures"]]
    if dist.get_rank() == 0:
        what = results.command(f"torchrun --nproc-per-node {mesh.size()} benchmarks/torch_several.py")
        results.write(given.out, results.record(what, facts, [], failures, small=given.small, torch_models=rows))
        print(table(rows))
    dist.destroy_process_group()
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
