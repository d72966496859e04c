"""``toprung::matmul``, an operator of PyTorch's own kind: what torch.compile and torch.export put into their graphs."""

from __future__ import annotations

from typing import Any

import torch

from toprung.blas.packed import PackedOperand, numbered
from toprung.blas.routines import computed
from toprung.device import Device
from toprung.errors import BadArgument, BadArray, BadShape
from toprung.torch.gradients import gradients

SCHEMA = "(Tensor a, Tensor b, str precision, bool own, str device, int packed) -> Tensor"

library = torch.library.Library("toprung", "DEF")
library.define(f"matmul{SCHEMA}", tags=(torch.Tag.pt2_compliant_tag,))
library.define("matmul_out(Tensor a, Tensor b, Tensor(a!) out, str precision, bool own, str device) -> ()")


def _run(a: Any, b: Any, precision: str, own: bool, device: str, packed: int) -> Any:
    with torch.no_grad():
        return computed(a.detach(), (numbered(packed) if packed else None) or b.detach(), None, precision, own, device or None)


def _run_out(a: Any, b: Any, out: Any, precision: str, own: bool, device: str) -> None:
    with torch.no_grad():
        computed(a, b, out, precision, own, device or None)


def _shaped(a: Any, b: Any, precision: str, own: bool, device: str, packed: int) -> Any:
    return a.new_empty(torch.matmul(a.float(), b.float()).shape, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, *ctx.options = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    precision, own, device, _ = ctx.options

    def product(x: Any, y: Any) -> Any:
        return torch.ops.toprung.matmul(x, y, precision, own, device, 0)

    return (*gradients(product, a, b, grad, ctx.needs_input_grad[:2]), None, None, None, None)


library.impl("matmul", _run, "CompositeExplicitAutograd")
library.impl("matmul_out", _run_out, "CompositeExplicitAutograd")
torch.library.register_fake("toprung::matmul", _shaped, lib=library)
torch.library.register_fake("toprung::matmul_out", lambda *_: None, lib=library)
torch.library.register_autograd("toprung::matmul", _backward, setup_context=_keep, lib=library)


def finished(made: Any, bias: Any, activation: str) -> Any:
    """Return f(A·B + bias) of a product by PyTorch's own functions, which it records and fuses."""
    if bias is not None:
        if not isinstance(bias, torch.Tensor):
            raise BadArray(f"bias is {type(bias).__name__}, not a tensor as the product is")
        shape = tuple(made.shape)
        if len(bias.shape) > len(shape) or any(n not in (1, m) for n, m in zip(bias.shape[::-1], shape[::-1], strict=False)):
            raise BadShape(f"bias is {tuple(bias.shape)} and does not broadcast to the result, {shape}: (N,) or (M, 1) would")
        if bias.dtype != torch.float32:
            raise BadArray(f"bias is {bias.dtype}, not float32: convert it")
        made = made + bias
    if activation == "relu":
        return torch.relu(made)
    return torch.nn.functional.gelu(made, approximate="tanh") if activation else made


def traced(
    a: Any, b: Any, out: Any, precision: str, own: bool, device: Device | str | None, bias: Any = None, activation: str = ""
) -> Any:
    """Return a product as one operator of the graph that is traced, and its epilogue as operators of PyTorch's.

    Raises
    ------
    BadArgument, BadArray
        options that no graph can hold
    """
    name = "" if device is None else device if isinstance(device, str) else device.id
    if isinstance(b, PackedOperand):
        if out is not None:
            raise BadArgument("in a compiled function a prepacked operand has no out=: leave it out")
        array = b.array if b.origin is None else b.origin.mT if b.trans else b.origin
        return finished(torch.ops.toprung.matmul(a, array, b.asked(precision), own, name, b.number), bias, activation)
    if out is None:
        return finished(torch.ops.toprung.matmul(a, b, precision, own, name, 0), bias, activation)
    if isinstance(out, tuple):
        (out,) = out
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or out.requires_grad):
        raise BadArray("out= takes no product whose gradient is to be recorded: leave it out, or use torch.no_grad()")
    if bias is not None or activation:
        return out.copy_(finished(torch.ops.toprung.matmul(a, b, precision, own, name, 0), bias, activation))
    torch.ops.toprung.matmul_out(a, b, out, precision, own, name)
    return out
