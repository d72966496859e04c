"""Adapter for PyTorch tensors, on the CPU and on CUDA devices, on PyTorch's current stream."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.arrays.base import HOST, Adapter, Home, Operand, refuse_dtype
from toprung.arrays.numpy import host_operand
from toprung.errors import BadArray


def _torch() -> Any:
    """Return the module ``torch``, which is imported already if there is a tensor."""
    return sys.modules["torch"]


@functools.cache
def _stream_of() -> Callable[[int], int]:
    """Return PyTorch's fastest function from a device number to the handle of its current stream there."""
    raw = getattr(_torch()._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda number: _torch().cuda.current_stream(number).cuda_stream)


@functools.cache
def _empty_strided(device: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return PyTorch's fastest function from a shape and strides to a new float32 tensor on a device, and its further arguments."""
    torch = _torch()
    # Inductor's code calls this function, too. It skips the dispatcher, so it takes less than half the time of empty_strided.
    # It allocates on the current GPU, so a program that sees several GPUs does not use it.
    quick = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)
    if quick is None or (device.type != "cpu" and torch.cuda.device_count() > 1):
        return functools.partial(torch.empty_strided, dtype=torch.float32, device=device), ()
    return quick, (torch.float32,)


class Torch(Adapter):
    """Adapter of strided float32 tensors that need no gradient; ``toprung.torch`` multiplies those that do."""

    name = "PyTorch"
    package = "torch"
    type_name = "Tensor"
    _modes: tuple[Callable[[], int], Any] | None = None

    def operand(self, thing: Any, name: str) -> Operand:
        # the tensor's memory as an Operand; raise BadArray for a gradient to record, no strides, another type or device
        if thing.dtype != _torch().float32:
            raise refuse_dtype(name, thing.dtype, f"{name}.float()")
        return self._operand(thing, name, "float32")

    def widened(self, thing: Any) -> Any:
        return thing.detach().float()

    def half_operand(self, thing: Any, name: str) -> Operand:
        return self._operand(thing, name, self.half(thing))

    def _operand(self, thing: Any, name: str, dtype: str) -> Operand:
        torch = _torch()
        if thing.layout != torch.strided:
            raise BadArray(f"{name} is a tensor of layout {thing.layout}: pass {name}.to_dense()")
        if thing.requires_grad and torch.is_grad_enabled():
            raise BadArray(f"{name} requires a gradient, which only matmul records: pass {name}.detach(), or use torch.no_grad()")
        if thing.is_neg():
            return self._operand(thing.resolve_neg(), name, dtype)._replace(writable=False)  # a copy: a result in it would be lost
        if not thing.data_ptr() and thing.numel():
            raise BadArray(f"{name}, a {type(thing).__name__}, has no memory of its own: pass a plain tensor with its elements")
        if thing.device.type == "cpu" and dtype != "float32":
            return Operand(self, thing, tuple(thing.shape), thing.stride(), Home(HOST), thing.data_ptr(), dtype=dtype)
        if thing.device.type == "cpu":
            return host_operand(self, thing, self.on_host(thing))
        if thing.device.type != "cuda" or torch.version.cuda is None:
            raise BadArray(f"{name} is on {thing.device}, which toprung does not reach: move it with {name}.cpu() or {name}.cuda()")
        number = thing.device.index
        return Operand(
            self, thing, tuple(thing.shape), thing.stride(), Home("cuda", number), thing.data_ptr(), queue=_stream_of()(number),
            dtype=dtype,
        )  # fmt: skip

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        torch, device = _torch(), like.thing.device
        if fortran:
            return torch.empty(shape[::-1], dtype=torch.float32, device=device).permute(*range(len(shape) - 1, -1, -1))
        return torch.empty(shape, dtype=torch.float32, device=device)

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        # type, shape, strides in elements, device; None without strides or memory, with a gradient to lose, or a pending sign
        if (thing.requires_grad and _torch().is_grad_enabled()) or thing.is_neg():
            return None
        try:
            return (thing.dtype, thing.shape, thing.stride(), thing.get_device()) if thing.data_ptr() else None
        except RuntimeError:  # sparse ones have no strides
            return None

    def __reduce__(self) -> str:
        return "adapter"  # by its name in this module: functions of PyTorch that it keeps cannot be sent to another process

    def is_watching(self) -> bool:
        if self._modes is None:
            torch = _torch()
            self._modes = torch._C._len_torch_dispatch_stack, torch.autograd.forward_ad
        depth, forward = self._modes
        return depth() > 0 or forward._current_level >= 0

    def is_recorded(self, thing: Any) -> bool:
        torch = _torch()
        if (thing.requires_grad and torch.is_grad_enabled()) or self.is_watching():
            return True
        if type(thing) not in (torch.Tensor, torch.nn.Parameter):
            return True
        return thing.layout == torch.strided and not torch._C._has_storage(thing)

    def detached(self, thing: Any) -> Any:
        return thing.detach()

    def watch(self, thing: Any) -> Callable[[], bool] | None:
        """Return a function that asks the tensor's version, and its address while it lives; it keeps none of its memory.

        Writes through ``.data`` count nowhere. Tensors of inference mode have no version.
        """
        if thing.is_inference():
            return None
        counter, version, here, at = thing.detach(), thing._version, weakref.ref(thing), thing.data_ptr()
        counter.data = thing.new_empty(0)  # other memory, and the same counter as before

        def changed() -> bool:
            now = here()
            return counter._version != version or (now is not None and now.data_ptr() != at)

        return changed

    def address(self, thing: Any) -> int:
        return int(thing.data_ptr())

    def on_host(self, thing: Any) -> NDArray[np.float32]:
        # Tensor.numpy would keep PyTorch from resizing the memory later, as FSDP does
        strides = tuple(4 * n for n in thing.stride())
        its = {"data": (thing.data_ptr(), False), "shape": tuple(thing.shape), "strides": strides, "typestr": "<f4", "version": 3}
        return np.asarray(SimpleNamespace(kept=thing, __array_interface__=its))

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        return thing.new_empty(shape) if thing.dtype is _torch().float32 else thing.new_empty(shape, dtype=_torch().float32)

    def queue(self, thing: Any, home: Home) -> Any:
        return _stream_of()(home.number)

    def exchange(self) -> tuple[Iterable[type], tuple[Any, ...]] | None:
        torch = _torch()
        capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # from 2.11 on
        watching = torch._C._len_torch_dispatch_stack, vars(torch.autograd.forward_ad), torch.is_grad_enabled
        return None if capsule is None else ((torch.Tensor, torch.nn.Parameter), (capsule, *watching))

    def maker(self, like: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Callable[[], Any]:
        make, options = _empty_strided(like.device)
        return functools.partial(make, shape, strides, *options)

    def is_capturing(self) -> bool:
        cuda = _torch().cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def lend(self, thing: Any, nbytes: int) -> tuple[Any, int]:
        # memory of PyTorch's caching allocator; of the graph's own pool while the stream is captured
        made = thing.new_empty(-(-nbytes // thing.element_size()))
        return made, made.data_ptr()


adapter = Torch()
