"""Overloads of aten that toprung takes: each sorts its arguments for ``multiply``; where that says None, PyTorch's own runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from toprung.torch.products import multiply

Kernel = Callable[..., Any]

OVERLOADS = {
    op + rest: op
    for op, others in {
        "mm": ".out .dtype .dtype_out", "bmm": ".out .dtype .dtype_out",
        "addmm": ".out _ .dtype .dtype_out", "baddbmm": ".out _ .dtype .dtype_out",
        "_addmm_activation": ".out", "addmv": ".out _",
    }.items()
    for rest in ("", *others.split())
}  # fmt: skip
"""Overloads of aten by name: the operator of ``settings.ops`` that they belong to."""

TYPES = (), (torch.float32,)
"""Values of an overload's argument for the result's type that toprung takes."""


def form(name: str) -> str:
    """Return the name by which the bridge knows an overload's signature, such as ``addmm_dtype_out``."""
    base, _, rest = name.partition(".")
    same = {"mm": "mm", "bmm": "mm", "_addmm_activation": "activation"}.get(base, "addmm")
    return same + "_" * base.endswith("_") + f"_{rest}" * bool(rest)


def kernel(name: str, original: Kernel) -> Kernel:
    """Return the kernel of an overload; a product that is left to PyTorch keeps all its arguments."""
    op, inplace, activates = OVERLOADS[name], name.endswith("_"), name.startswith("_addmm_activation")

    def product(self: Any, mat2: Any, *dtype: Any, **out: Any) -> Any:
        made = multiply(op, self, mat2, **out) if dtype in TYPES else None
        return original(self, mat2, *dtype, **out) if made is None else made

    def add(self: Any, mat1: Any, mat2: Any, *dtype: Any, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False, **out: Any) -> Any:
        gelu = "gelu" if mat1.is_cuda else "gelu exactly"  # PyTorch fuses the tanh form on a GPU, the exact one on the host
        activation = (gelu if use_gelu else "relu") if activates else ""
        made = None
        if dtype in TYPES:
            made = multiply(op, mat1, mat2, self, beta, alpha, inplace=inplace, activation=activation, **out)
        if made is None:
            use = {"use_gelu": use_gelu} if activates else {}
            made = original(self, mat1, mat2, *dtype, beta=beta, alpha=alpha, **use, **out)
        return made

    return product if op in ("mm", "bmm") else add
