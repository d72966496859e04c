"""Places at which CuPy's products can be replaced without a change to CuPy, and what stands there while toprung is enabled.

CuPy's products are functions of compiled modules, which call each other directly. Four places are looked up anew at each call:

- ``cupy.ndarray``, a class made at run time: the operator ``@``, and the method ``dot``, which ``cupy.dot`` calls;
- ``cupy.matmul``, an object that asks its ``_try_fastcall_func`` first; ``cupy.einsum`` and ``numpy.matmul`` call that object;
- ``cupy._core.tensordot_core``, which ``cupy.tensordot`` and ``cupy.inner`` call by that name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy

from toprung.cupy import products
from toprung.cupy.products import multiply

Function = Callable[..., Any]

PLAIN = {"axes": None, "axis": None, "keepdims": False, "casting": "same_kind", "signature": None}
"""Keywords of ``cupy.matmul`` at which they change nothing."""


def operator(original: Function) -> Function:
    """Return ``ndarray.__matmul__``."""

    @functools.wraps(original)
    def __matmul__(self: Any, other: Any) -> Any:
        made = multiply(self, other)
        return original(self, other) if made is None else made

    return __matmul__


def method(original: Function) -> Function:
    """Return ``ndarray.dot``."""

    @functools.wraps(original)
    def dot(self: Any, b: Any, out: Any = None) -> Any:
        made = None
        if products.now is not None and type(b) is products.ndarray:
            if self.ndim <= 2 and b.ndim <= 2:
                if out is None or (type(out) is products.ndarray and out.flags.c_contiguous):  # else CuPy raises
                    made = multiply(self, b, out)
            elif self.ndim and b.ndim and out is None and self.shape[-1] == b.shape[max(b.ndim - 2, 0)]:
                axis = max(b.ndim - 2, 0)
                shape = self.shape[:-1] + b.shape[:axis] + b.shape[axis + 1 :]
                made, _, _ = contracted(cupy.rollaxis(self, self.ndim - 1), cupy.rollaxis(b, axis), self.shape[-1], shape)
        return original(self, b, out) if made is None else made

    return dot


def fastcall(original: Function) -> Function:
    """Return what ``cupy.matmul`` asks first; NotImplemented from it makes CuPy go on by itself."""

    def matmul(*args: Any, out: Any = None, dtype: Any = None, order: str = "K", **more: Any) -> Any:
        made = None
        if products.now is not None and len(args) == 2 and more == PLAIN and order in ("K", "C") and _is_float32(dtype):
            made = multiply(*args, out)
        return original(*args, out=out, dtype=dtype, order=order, **more) if made is None else made

    return matmul


def _is_float32(dtype: Any) -> bool:
    """Return True for None and for float32; False for anything else, also for what is no type, which CuPy refuses."""
    try:
        return dtype is None or cupy.dtype(dtype).char == products.FLOAT32
    except TypeError:
        return False


def core(original: Function) -> Function:
    """Return ``tensordot_core``: the product of arrays whose first axes, ``k`` elements, are summed over."""

    @functools.wraps(original)
    def tensordot_core(a: Any, b: Any, out: Any, n: int, m: int, k: int, ret_shape: Any) -> Any:
        made = None
        if products.now is not None and out is None and max(n, m) > 1:  # products of two vectors are CuPy's
            made, a, b = contracted(a, b, k, ret_shape)
        return original(a, b, out, n, m, k, ret_shape) if made is None else made

    return tensordot_core


def contracted(a: Any, b: Any, k: int, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return the product over the first axes of two arrays, None if it is CuPy's; and the arrays, with all other axes joined.

    ``k`` is the number of elements that the first axes hold. Joining copies what cannot be joined in place, as CuPy's own does.
    """
    active = products.now
    if active is None or type(a) is not products.ndarray or type(b) is not products.ndarray:
        return None, a, b
    if a.dtype.char != products.FLOAT32 or b.dtype.char != products.FLOAT32 or not a.size or not b.size:
        return None, a, b
    if a.size * (b.size // k) < active.least:
        active.small += 1
        return None, a, b
    a, b = a.reshape(k, -1), b.reshape(k, -1)
    made = multiply(a.T, b)
    if made is not None:
        made.shape = shape
    return made, a, b


SEAMS: tuple[tuple[Any, str, Callable[[Function], Function]], ...] = (
    (cupy.ndarray, "__matmul__", operator), (cupy.ndarray, "dot", method), (cupy.matmul, "_try_fastcall_func", fastcall),
    (cupy._core, "tensordot_core", core),
)  # fmt: skip
"""Owner and name of each place, and what makes the function that stands there from CuPy's own."""

_INHERITED = object()


class Installed:
    """Functions of ours at the seams, until ``end``."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, str, Any, Function]] = []
        for owner, name, make in SEAMS:
            before = vars(owner).get(name, _INHERITED)
            ours = make(getattr(owner, name))
            setattr(owner, name, ours)
            self._places.append((owner, name, before, ours))

    def end(self) -> None:
        """Give CuPy's own functions their places back, where nobody else has put another one since: ours then only pass on."""
        for owner, name, before, ours in self._places:
            if vars(owner).get(name) is not ours:
                continue
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
