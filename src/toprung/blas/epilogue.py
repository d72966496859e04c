"""Epilogue of a product: an array that is added to it, and a function that its elements go through."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from toprung.arrays.base import HOST
from toprung.arrays.sessions import session_at
from toprung.blas import receipt
from toprung.blas.operands import Arranged, How, View, arranged, same_memory, sizes, strict, taken, together
from toprung.blas.packed import PackedOperand
from toprung.blas.product import Call, OnDevice, copy, decided, executor_of, follow, fused
from toprung.errors import BadArgument, BadArray, BadShape
from toprung.gemm import overlap
from toprung.gemm.epilogue import ACTIVATIONS


def known_activation(activation: Any) -> str:
    """Return the name of a function, empty for None; raise BadArgument for one that there is not."""
    if activation is None:
        return ""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        given = repr(activation) if isinstance(activation, str) else type(activation).__name__
        raise BadArgument(f"activation is one of {', '.join(ACTIVATIONS)}, or None, not {given}")
    return activation


def added(bias: Any, given: Arranged, how: How) -> View:
    """Return what is added to a result as a view of its shape; raise what ``matmul`` raises of an operand that does not fit."""
    if isinstance(bias, PackedOperand):
        raise BadArray("bias is prepacked, and only b can be: pass the array itself as bias")
    operand, shape = strict(bias, "bias"), given.result.shape
    together([given.first, operand], how._replace(names=(how.names[0], "bias", "")))
    try:
        fits = np.broadcast_shapes(operand.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise BadShape(f"bias is {sizes(operand.shape)} and does not broadcast to the result, {sizes(shape)}: (N,) or (M, 1) would")
    result, of_bias = ((one.address, one.shape, one.strides) for one in (given.result, operand))
    # a bias that is the result itself is safe: the thread that writes an element reads it first
    if same_memory(given.result, operand) and result != of_bias and overlap.share(result, of_bias):
        raise overlap.refuse("out", "bias")
    strides = [0] * (len(shape) - len(operand.shape))
    strides += [0 if n == 1 else s for n, s in zip(operand.shape, operand.strides, strict=True)]
    if len(given.first.shape) == 1:  # a vector left a dimension of the result out
        strides.insert(len(given.c.shape) - 2, 0)
    if len(given.second.shape) == 1:
        strides.append(0)
    return View(operand, given.c.shape, tuple(strides))


class Checked(NamedTuple):
    """Operands of a product with an epilogue that fit together; see ``Ready``."""

    given: Arranged
    bias: View | None
    packed: Any
    activation: str
    how: How


class Ready(NamedTuple):
    """Product with an epilogue, decided: nothing is computed yet.

    Attributes
    ----------
    call : with ``is_fused`` all of it; else the product alone, for β = 1 if there is a bias, else for β = 0
    given, bias : operands, and what is added
    packed : prepacked B, if there is one
    activation : name of f; empty for none
    """

    call: Call
    given: Arranged
    bias: View | None
    packed: Any
    activation: str

    @property
    def is_fused(self) -> bool:
        """True if the product's own launch computes the epilogue."""
        return isinstance(self.call, OnDevice) and self.call.executable.program.epilogue is not None


def checked(a: Any, b: Any, out: Any, bias: Any, activation: str, how: How) -> Checked:
    """Check the operands of f(A·B + bias)."""
    packed = None
    if isinstance(b, PackedOperand):
        b.check()
        how, packed, b = how._replace(precision=b.asked(how.precision)), b.terms, b.array
    given = arranged(*taken(a, b, out), out, how)
    return Checked(given, None if bias is None else added(bias, given, how), packed, activation, how)


def ready(product: Checked) -> Ready:
    """Decide who computes f(A·B + bias)."""
    given, view, packed, activation, how = product
    call = decided(1.0, given.a, given.b, 0.0, given.c, how)
    together = None
    if view is not None or activation:
        together = fused(call, None if view is None else view.strides, activation, given.a, given.b, given.c, how)
    if together is None and view is not None:
        call = decided(1.0, given.a, given.b, 1.0, given.c, how)
    return Ready(together or call, given, view, packed, activation)


def run(ready: Ready) -> None:
    """Compute C = f(A·B + bias): in one launch, or C takes the bias first, the product is added to it, and f comes last."""
    call, given, bias, packed, activation = ready
    a, c = given.a.operand, given.c
    if isinstance(call, OnDevice) and ready.is_fused:
        call.run(1.0, given.a, given.b, 1.0 if bias is not None else 0.0, c, packed, bias)
        return
    launches, on_device = 0, a.home.kind != HOST
    session = session_at(a.home, a.queue) if on_device else None
    if bias is not None and bias.first != c.first:
        if session is not None:
            follow(session, bias.operand.queue, c.operand.queue)
        launches += copy(bias, c)
        if session is not None:
            follow(session, a.queue, bias.operand.queue)
    call.run(1.0, given.a, given.b, 1.0 if bias is not None else 0.0, c, packed)
    if session is None:
        if activation:
            _on_host(activation, c.on_host)
    elif activation and 0 not in c.shape:
        at, first = c.first
        executable = executor_of(session).copies(c.shape, 2, c.strides, c.strides, activation)
        executable.run(0, 0, 0, 0, at, first, 1.0, 0.0, a.queue)
        launches += executable.launches
        follow(session, c.operand.queue, a.queue)
        if a.unordered or c.operand.unordered:
            session.settle_queue(a.queue)
    if launches:
        receipt.add(launches)


def _on_host(activation: str, x: Any) -> None:
    """Replace elements by their function, as the kernel has it."""
    with np.errstate(all="ignore"):
        if activation == "relu":
            np.maximum(x, 0.0, out=x)
        else:
            np.divide(x, 1.0 + np.exp(-2.0 * np.float32(np.sqrt(2 / np.pi)) * x * (1.0 + np.float32(0.044715) * x * x)), out=x)
