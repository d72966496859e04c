"""PyTorch tensors, on the CPU and on CUDA devices, on PyTorch's current stream."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.arrays.base import Adapter, Home, Operand, refuse_dtype
from toprung.arrays.numpy import host_operand
from toprung.errors import BadArray


def _torch() -> Any:
    """PyTorch: whoever has a tensor has imported it."""
    return sys.modules["torch"]


@functools.cache
def _stream_of() -> Callable[[int], int]:
    """Device number → handle of PyTorch's current stream there, by the shortest way PyTorch has."""
    raw = getattr(_torch()._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda number: _torch().cuda.current_stream(number).cuda_stream)


class Torch(Adapter):
    """Strided float32 tensors that need no gradient."""

    name = "PyTorch"
    package = "torch"
    type_name = "Tensor"

    def operand(self, thing: Any, name: str) -> Operand:
        """The tensor's storage."""
        torch = _torch()
        if thing.dtype != torch.float32:
            raise refuse_dtype(name, thing.dtype, f"{name}.float()")
        if thing.layout != torch.strided:
            raise BadArray(f"{name} is a tensor of layout {thing.layout}: pass {name}.to_dense()")
        if thing.requires_grad and torch.is_grad_enabled():
            raise BadArray(
                f"{name} requires a gradient, which toprung does not record: pass {name}.detach(), or use torch.no_grad()"
            )
        thing = thing.resolve_neg() if thing.is_neg() else thing
        if thing.device.type == "cpu":
            return host_operand(self, thing, thing.detach().numpy())
        if thing.device.type != "cuda" or torch.version.cuda is None:
            raise BadArray(f"{name} is on {thing.device}, which toprung does not reach: move it with {name}.cpu() or {name}.cuda()")
        number = thing.device.index
        return Operand(
            self, thing, tuple(thing.shape), thing.stride(), Home("cuda", number), thing.data_ptr(), queue=_stream_of()(number)
        )

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        """From PyTorch's allocator, which belongs to the current stream."""
        torch, device = _torch(), like.thing.device
        if fortran:
            return torch.empty(shape[::-1], dtype=torch.float32, device=device).permute(*range(len(shape) - 1, -1, -1))
        return torch.empty(shape, dtype=torch.float32, device=device)

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        """Return type, shape, strides and device; None without strides, with a gradient to lose, or with a pending sign."""
        if (thing.requires_grad and _torch().is_grad_enabled()) or thing.is_neg():
            return None
        try:
            return thing.dtype, thing.shape, thing.stride(), thing.get_device()
        except RuntimeError:  # sparse ones have no strides
            return None

    def address(self, thing: Any) -> int:
        """Return the address of the first element."""
        return int(thing.data_ptr())

    def on_host(self, thing: Any) -> NDArray[np.float32]:
        """Return a tensor's memory."""
        return thing.detach().numpy()  # type: ignore[no-any-return]

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        """Return a new tensor from PyTorch's allocator."""
        return thing.new_empty(shape)

    def queue(self, thing: Any, home: Home) -> Any:
        """Return PyTorch's current stream on a device."""
        return _stream_of()(home.number)


adapter = Torch()
