"""Gradients of ``matmul`` for operands of any dimensions: two more products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Multiply = Callable[[Any, Any], Any]
"""Function that multiplies two tensors by ``numpy.matmul``'s rules."""


def gradients(multiply: Multiply, a: Any, b: Any, grad: Any, wanted: tuple[bool, ...]) -> tuple[Any, Any]:
    """Return the gradients of A and of B, given that of A·B; None for what is not wanted.

    Parameters
    ----------
    multiply : what multiplies; with it the gradients can be differentiated again
    a, b, grad : (…, M, K) or (K,), (…, K, N) or (K,), and what their product is like
    wanted : whether the gradient of A is wanted, and that of B
    """
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    if a.dim() == 1:
        grad = grad.unsqueeze(-1 if b.dim() == 1 else -2)
    if b.dim() == 1:
        grad = grad.unsqueeze(-1)
    of_a = of_b = None
    if wanted[0]:
        of_a = multiply(grad, right.mT).sum_to_size(left.shape).reshape(a.shape)
    if wanted[1] and right.dim() == 2:  # one B for a whole batch: one deep product in place of a batch and a sum
        of_b = multiply(left.reshape(-1, left.shape[-1]).mT, grad.reshape(-1, grad.shape[-1])).reshape(b.shape)
    elif wanted[1]:
        of_b = multiply(left.mT, grad).sum_to_size(right.shape).reshape(b.shape)
    return of_a, of_b
