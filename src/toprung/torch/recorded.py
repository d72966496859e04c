"""``toprung.matmul`` of tensors that PyTorch records, transforms or traces, as an ``autograd.Function``."""

from __future__ import annotations

from typing import Any

import torch

from toprung.blas import routines
from toprung.blas.packed import PackedOperand
from toprung.device import Device
from toprung.errors import BadArray
from toprung.torch.gradients import gradients
from toprung.torch.operator import finished, traced


class Product(torch.autograd.Function):  # type: ignore[misc]
    """A·B with its gradients, forward and backward, and a rule for ``torch.vmap``."""

    @staticmethod
    def forward(a: Any, b: Any, options: tuple[Any, ...]) -> Any:
        """Return A·B."""
        return _computed(a, b, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the operands."""
        a, b, ctx.options = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Return the gradients of A and B."""
        a, b = ctx.saved_tensors
        return (*gradients(lambda x, y: _matmul(x, y, ctx.options), a, b, grad, ctx.needs_input_grad[:2]), None)

    @staticmethod
    def jvp(ctx: Any, of_a: Any, of_b: Any, _: Any) -> Any:
        """Return the derivative of A·B along tangents of A and B."""
        a, b = ctx.saved_tensors
        parts = [_matmul(x, y, ctx.options) for x, y in ((of_a, b), (a, of_b)) if x is not None and y is not None]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], a: Any, b: Any, options: tuple[Any, ...]) -> Any:
        """Return the products along one more dimension, which goes before all others."""
        (a, vector_a), (b, vector_b) = _along(a, in_dims[0], 0), _along(b, in_dims[1], -1)
        # both get the dimension and as many of a batch, or matmul would take one for the other
        deep = max(a.dim(), b.dim())
        a, b = (x.reshape(x.shape[0], *(1,) * (deep - x.dim()), *x.shape[1:]) for x in (a, b))
        made = _matmul(a, b, options)
        if vector_b:
            made = made.squeeze(-1)
        if vector_a:
            made = made.squeeze(-1 if vector_b else -2)
        return made, 0


def _along(thing: Any, dim: int | None, side: int) -> tuple[Any, bool]:
    """Return an operand with the new dimension in front (of one element if it has none), as matrices; True if it is a vector."""
    thing = thing.unsqueeze(0) if dim is None else thing.movedim(dim, 0)
    if thing.dim() == 2:
        return thing.unsqueeze(1 if side == 0 else 2), True
    return thing, False


class PackedProduct(torch.autograd.Function):  # type: ignore[misc]
    """A·B for a prepacked B, whose gradient goes to the tensor that it was made of."""

    @staticmethod
    def forward(a: Any, origin: Any, packed: PackedOperand, options: tuple[Any, ...]) -> Any:
        """Return A·B."""
        return _computed(a, packed, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the operands."""
        a, _, ctx.packed, ctx.options = inputs
        ctx.save_for_backward(a)
        ctx.save_for_forward(a)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Return the gradients of A and of what B was made of."""
        (a,) = ctx.saved_tensors
        of_a, of_b = gradients(lambda x, y: _matmul(x, y, ctx.options), a, ctx.packed.array, grad, ctx.needs_input_grad[:2])
        return of_a, of_b.mT if of_b is not None and ctx.packed.trans else of_b, None, None

    @staticmethod
    def jvp(ctx: Any, of_a: Any, of_origin: Any, *_: Any) -> Any:
        """Return the derivative along tangents of A and of what B was made of."""
        (a,) = ctx.saved_tensors
        parts = [] if of_a is None else [_matmul(of_a, ctx.packed, ctx.options)]
        if of_origin is not None:
            parts.append(_matmul(a, of_origin.mT if ctx.packed.trans else of_origin, ctx.options))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], a: Any, origin: Any, packed: PackedOperand, options: tuple[Any, ...]) -> Any:
        """Return the products along one more dimension of A: for B it is a batch like any other."""
        a, vector = _along(a, in_dims[0], 0)
        made = PackedProduct.apply(a, origin, packed, options)
        return made.squeeze(-2) if vector else made, 0


def matmul(
    a: Any, b: Any, out: Any, precision: str, own: bool, device: Device | str | None, bias: Any = None, activation: str = ""
) -> Any:
    """Return ``toprung.matmul`` of operands of which PyTorch must see what happens to them.

    Raises
    ------
    BadArray
        ``out`` together with a gradient to record
    """
    tensors = [x for x in (a, b, bias) if isinstance(x, torch.Tensor)]
    if _is_traced(*tensors):
        return traced(a, b, out, precision, own, device, bias, activation)
    if out is not None:
        raise BadArray("out= takes no product whose gradient is to be recorded: leave it out, or use torch.no_grad()")
    if not all(torch._C._has_storage(x) or torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors):
        # is_grads_batched=True vectorises in an older way, which knows aten's operators alone
        b = b.array if isinstance(b, PackedOperand) else b
        return finished(torch.matmul(a.float(), b.float()), bias, activation)
    options = precision, own, device
    if isinstance(b, PackedOperand):
        return finished(PackedProduct.apply(a, b.origin, b, options), bias, activation)
    return finished(Product.apply(a, b, options), bias, activation)


def _is_traced(*tensors: Any) -> bool:
    """Return True if a graph is being made, or a subclass or a mode wants to see an operator."""
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    return any(
        type(t) not in (torch.Tensor, torch.nn.Parameter)
        and type(t).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
        for t in tensors
    )


def _matmul(a: Any, b: Any, options: tuple[Any, ...]) -> Any:
    precision, own, device = options
    return routines.matmul(a, b, precision=precision, own=own, device=device)


def _computed(a: Any, b: Any, options: tuple[Any, ...]) -> Any:
    """Return the product itself: inside a ``Function`` nothing is recorded."""
    return routines.computed(a.detach(), b.detach() if isinstance(b, torch.Tensor) else b, None, *options)
