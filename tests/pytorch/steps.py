"""Products of DTensors and training steps of ``benchmarks/torch_several.py``, as one rank makes them on toprung's kernels."""

from __future__ import annotations

import functools
from typing import Any

import torch

import toprung.torch
import torch_several

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


def step(name: str, mesh: Any) -> dict[str, Any]:
    """Make one training step of a split model; return the largest error of its loss and of each gradient."""
    split, (loss, grads) = torch_several.training(name, mesh, 24, 6)
    made = float(split.step(split.loss))
    return {"error": max(abs(made - loss) / loss, *map(error, split.outcome(), grads))}


STEPS = {"dtensor": matmuls} | {name: functools.partial(step, name) for name in torch_several.SPLITS}


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
