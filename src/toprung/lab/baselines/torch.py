"""PyTorch: what most programs that multiply matrices call, on a CPU or on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toprung.device import Device
from toprung.lab.baselines import Peer
from toprung.lab.baselines._host import OnHost
from toprung.lab.baselines._torch import cuda_tensors, host_tensors, no_torch, no_torch_cuda
from toprung.lab.baselines._twin import placed_through
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice


class TorchPeer(Peer):
    """``addmm_`` and ``baddbmm_`` in full fp32."""

    name = "torch"
    title = "PyTorch"
    kinds = ("cpu", "gpu")

    def absent(self, device: Device) -> str:
        # why PyTorch is missing or cannot use the device; empty if it can
        return no_torch_cuda(device) if device.kind == "gpu" else no_torch()

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        import torch

        problem = self.product(placed, zero=False)
        torch.set_float32_matmul_precision("highest")  # its default; a program that changed it would be timed in TF32
        if placed.session.device.kind == "gpu":
            placed = placed_through(placed, "cuda")
            return BoundOnDevice(placed, _bound(problem, cuda_tensors(placed, problem)))
        flat, name = placed.operands.flat, problem.output.name
        return OnHost(placed.operands, lambda own: _bound(problem, host_tensors({**flat, name: own}, problem)))


def _bound(problem: Gemm, tensors: tuple[Any, Any, Any]) -> Callable[[], object]:
    a, b, c = tensors
    scalars = {"alpha": problem.alpha, "beta": problem.beta}
    if problem.batch > 1:
        return lambda: c.baddbmm_(a, b, **scalars)
    a, b, c = a[0], b[0], c[0]
    return lambda: c.addmm_(a, b, **scalars)


PEER = TorchPeer()
