"""Overloads of aten that toprung takes: each sorts its arguments for ``multiply``; where that says None, PyTorch's own runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from toprung.torch.products import multiply

Kernel = Callable[..., Any]
FLOAT32 = torch.float32


def mm(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``mm`` and ``bmm``."""

    def kernel(self: Any, mat2: Any) -> Any:
        made = multiply(op, self, mat2)
        return original(self, mat2) if made is None else made

    return kernel


def mm_out(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``mm.out`` and ``bmm.out``."""

    def kernel(self: Any, mat2: Any, *, out: Any) -> Any:
        made = multiply(op, self, mat2, out=out)
        return original(self, mat2, out=out) if made is None else made

    return kernel


def mm_dtype(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``mm.dtype`` and ``bmm.dtype``."""

    def kernel(self: Any, mat2: Any, out_dtype: Any) -> Any:
        made = multiply(op, self, mat2) if out_dtype is FLOAT32 else None
        return original(self, mat2, out_dtype) if made is None else made

    return kernel


def mm_dtype_out(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``mm.dtype_out`` and ``bmm.dtype_out``."""

    def kernel(self: Any, mat2: Any, out_dtype: Any, *, out: Any) -> Any:
        made = multiply(op, self, mat2, out=out) if out_dtype is FLOAT32 else None
        return original(self, mat2, out_dtype, out=out) if made is None else made

    return kernel


def addmm(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``addmm``, ``baddbmm`` and ``addmv``."""

    def kernel(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        made = multiply(op, mat1, mat2, self, beta, alpha)
        return original(self, mat1, mat2, beta=beta, alpha=alpha) if made is None else made

    return kernel


def addmm_out(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``addmm.out``, ``baddbmm.out`` and ``addmv.out``."""

    def kernel(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
        made = multiply(op, mat1, mat2, self, beta, alpha, out)
        return original(self, mat1, mat2, beta=beta, alpha=alpha, out=out) if made is None else made

    return kernel


def addmm_(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``addmm_``, ``baddbmm_`` and ``addmv_``."""

    def kernel(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        made = multiply(op, mat1, mat2, self, beta, alpha, inplace=True)
        return original(self, mat1, mat2, beta=beta, alpha=alpha) if made is None else made

    return kernel


def addmm_dtype(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``addmm.dtype`` and ``baddbmm.dtype``."""

    def kernel(self: Any, mat1: Any, mat2: Any, out_dtype: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        made = multiply(op, mat1, mat2, self, beta, alpha) if out_dtype is FLOAT32 else None
        return original(self, mat1, mat2, out_dtype, beta=beta, alpha=alpha) if made is None else made

    return kernel


def addmm_dtype_out(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``addmm.dtype_out`` and ``baddbmm.dtype_out``."""

    def kernel(self: Any, mat1: Any, mat2: Any, out_dtype: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
        made = multiply(op, mat1, mat2, self, beta, alpha, out) if out_dtype is FLOAT32 else None
        return original(self, mat1, mat2, out_dtype, beta=beta, alpha=alpha, out=out) if made is None else made

    return kernel


def activation(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``_addmm_activation``: ``addmm``, then ReLU or GELU."""

    def kernel(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False) -> Any:
        made = multiply(op, mat1, mat2, self, beta, alpha, activation=_named(mat1, use_gelu))
        if made is None:
            return original(self, mat1, mat2, beta=beta, alpha=alpha, use_gelu=use_gelu)
        return made

    return kernel


def activation_out(original: Kernel, op: str) -> Kernel:
    """Return the kernel of ``_addmm_activation.out``."""

    def kernel(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False, out: Any) -> Any:
        made = multiply(op, mat1, mat2, self, beta, alpha, out, activation=_named(mat1, use_gelu))
        if made is None:
            return original(self, mat1, mat2, beta=beta, alpha=alpha, use_gelu=use_gelu, out=out)
        return made

    return kernel


def _named(tensor: Any, use_gelu: bool) -> str:
    """Return the activation as ``multiply`` names it: on a GPU PyTorch fuses the approximation by tanh, on the host not."""
    return ("gelu" if tensor.is_cuda else "gelu exactly") if use_gelu else "relu"


OVERLOADS: dict[str, tuple[str, Callable[[Kernel, str], Kernel]]] = {
    "mm": ("mm", mm), "mm.out": ("mm", mm_out), "mm.dtype": ("mm", mm_dtype), "mm.dtype_out": ("mm", mm_dtype_out),
    "bmm": ("bmm", mm), "bmm.out": ("bmm", mm_out), "bmm.dtype": ("bmm", mm_dtype), "bmm.dtype_out": ("bmm", mm_dtype_out),
    "addmm": ("addmm", addmm), "addmm.out": ("addmm", addmm_out), "addmm_": ("addmm", addmm_),
    "addmm.dtype": ("addmm", addmm_dtype), "addmm.dtype_out": ("addmm", addmm_dtype_out),
    "baddbmm": ("baddbmm", addmm), "baddbmm.out": ("baddbmm", addmm_out), "baddbmm_": ("baddbmm", addmm_),
    "baddbmm.dtype": ("baddbmm", addmm_dtype), "baddbmm.dtype_out": ("baddbmm", addmm_dtype_out),
    "_addmm_activation": ("_addmm_activation", activation), "_addmm_activation.out": ("_addmm_activation", activation_out),
    "addmv": ("addmv", addmm), "addmv.out": ("addmv", addmm_out), "addmv_": ("addmv", addmm_),
}  # fmt: skip
"""Overloads of aten by name: the operator of ``settings.ops`` that they belong to, and what makes their kernel."""
