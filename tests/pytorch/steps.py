"""Steps of DTensor, FSDP2 and tensor and sequence parallelism, as one rank of several makes them on toprung's kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import toprung.torch

BOUND = 2e-6
"""Largest error allowed, as a share of the largest element: sums here have at most some dozen terms."""


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest error of a tensor as a share of the largest element it should have."""
    return float((found.double() - right).abs().max() / right.abs().max())


def matmuls(mesh: Any) -> dict[str, Any]:
    """Multiply DTensors sharded along m, n and k, with uneven shards; return the largest error of products and gradients."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    worst = 0.0
    for places in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        torch.manual_seed(0)
        whole = [torch.randn(size, requires_grad=True) for size in ((9, 33), (33, 17))]
        right = [tensor.detach().double().requires_grad_() for tensor in whole]
        parts = [distribute_tensor(tensor.detach(), mesh, [place]) for tensor, place in zip(whole, places, strict=True)]
        for part in parts:
            part.requires_grad_()
        made, wanted = parts[0] @ parts[1], right[0] @ right[1]
        made.full_tensor().square().sum().backward()
        wanted.square().sum().backward()
        worst = max(worst, error(made.full_tensor().detach(), wanted.detach()))
        worst = max(worst, *(error(part.grad.full_tensor(), one.grad) for part, one in zip(parts, right, strict=True)))
    return {"error": worst}


def step(split: Callable[[nn.Module, Any], nn.Module], mesh: Any) -> dict[str, Any]:
    """Make one training step of two linear layers that ``split`` distributes; return its largest error of loss and gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 36), nn.ReLU(), nn.Linear(36, 24))
    right = copy.deepcopy(model).double()
    x = torch.randn(6, 24)
    wanted = right(x.double()).square().mean()
    wanted.backward()
    model = split(model, mesh)
    made = model(x)
    loss = getattr(made, "full_tensor", lambda: made)().square().mean()
    loss.backward()
    worst = abs(float(loss.detach()) - float(wanted.detach())) / float(wanted.detach())
    for name, parameter in model.named_parameters():
        grad: Any = parameter.grad
        grad = getattr(grad, "full_tensor", lambda grad=grad: grad)()
        worst = max(worst, error(grad, right.get_parameter(name).grad))
    return {"error": worst}


def fsdp(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in (model[1], model[3]):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})


def sequence_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel
    from torch.distributed.tensor.parallel import parallelize_module as parallelize

    cut = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),))
    return parallelize(
        parallelize(model, mesh, cut), mesh,
        {
            "0": SequenceParallel(sequence_dim=0), "1": ColwiseParallel(input_layouts=Shard(0)),
            "3": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        },
    )  # fmt: skip


STEPS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dtensor": matmuls, "fsdp2": lambda mesh: step(fsdp, mesh), "tensor": lambda mesh: step(tensor_parallel, mesh),
    "sequence": lambda mesh: step(sequence_parallel, mesh),
}  # fmt: skip


def every_step(mesh: Any) -> dict[str, dict[str, Any]]:
    """Run all of STEPS as one rank, each with the number of products that toprung's kernels took and left."""
    results = {}
    for name, one in STEPS.items():
        toprung.torch.enable(device_types=("cpu",), own=True, reproducible=True)
        results[name] = one(mesh)
        report = toprung.torch.report()
        results[name] |= {"taken": report.taken, "left": report.left, "report": str(report)}
    toprung.torch.disable()
    return results
