"""Make products under callgrind, by PyTorch alone and with the overrides in C++; test_instructions.py runs this file.

    valgrind --tool=callgrind --instr-atstart=no --combine-dumps=yes python under_callgrind.py MARKS BRIDGE

Each burst of calls ends with a dump of callgrind's, named by the settings and the product.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import Any

import torch

import toprung.torch
from toprung.torch import bridge

CALLS, BURSTS = 100, 3
"""Calls of a burst, and bursts: the cheapest counts, for the interpreter specialises its code in the first ones."""

A, B, C, X = *torch.rand(3, 16, 16), torch.rand(16)
LEAVES = A.clone().requires_grad_(), B.clone().requires_grad_()


def gradients(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.autograd.grad(torch.mm(a, b), (a, b), C)


PRODUCTS: dict[str, tuple[Any, tuple[torch.Tensor, ...], dict[str, Any]]] = {
    "mm": (torch.mm, (A, B), {}), "mm(out=)": (torch.mm, (A, B), {"out": C}),
    "addmm": (torch.addmm, (X, A, B), {}), "addmm(out=)": (torch.addmm, (X, A, B), {"out": C}),
    "gradients": (gradients, LEAVES, {}), "bmm": (torch.bmm, (A[None], B[None]), {}),
    "baddbmm(out=)": (torch.baddbmm, (A[None], A[None], B[None]), {"beta": 0.5, "out": C[None]}),
}  # fmt: skip

SEVERAL = {"gradients": 3}
"""Products that a call has, where it has more than one."""

SETTINGS: dict[str, dict[str, Any] | None] = {"PyTorch": None, "small": {}, "left": {"min_flops": 0}}
"""Settings of ``enable``, None for PyTorch alone; a kind that is left has been compared with PyTorch's own by then."""


def burst(function: Any, operands: tuple[torch.Tensor, ...], more: dict[str, Any]) -> None:
    for _ in range(CALLS):
        function(*operands, **more)


def main() -> None:
    marks, native = ctypes.CDLL(sys.argv[1]), bridge.loaded(Path(sys.argv[2]))
    bridge.library = lambda: native  # type: ignore[assignment]
    gc.disable()
    torch.set_num_threads(1)
    marks.start()
    for name, settings in SETTINGS.items():
        if settings is not None:
            toprung.torch.enable(device_types=("cpu",), **settings)
        for product, call in PRODUCTS.items():
            for _ in range(2):
                burst(*call)
                toprung.torch.wait()
            for _ in range(BURSTS):
                marks.dump(b"between")
                burst(*call)
                marks.dump(f"{name} {product}".encode())
    found = toprung.torch.report()
    assert found.taken == 0 and found.left == sum(SEVERAL.get(one, 1) for one in PRODUCTS) * CALLS * (BURSTS + 2), found


if __name__ == "__main__":
    main()
