"""The device that tensors of these tests lie on, and how toprung is enabled there."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
from typing import Any

import pytest
import torch

import once
import toprung.torch
from conftest import require
from toprung.backends import cxx
from toprung.torch import bridge, overloads, products

_entries = filter(None, os.getenv("PYTHONPATH", "").split(os.pathsep))
ELSEWHERE = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, _entries))}
"""Environment of a program that runs in another folder, where relative entries of PYTHONPATH name nothing."""

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

EVERY: dict[str, Any] = {"own": True, "min_flops": 0, "device_types": (DEVICE,), "reproducible": True}
"""Settings with which every product runs on toprung's kernels, also the first of its kind, which waits for them."""


@functools.cache
def native() -> ctypes.CDLL | None:
    """Return the bridge for the PyTorch that is installed: that of the wheel under test, else compiled once for all runs."""
    if (shipped := bridge.shipped()) is not None:
        return bridge.loaded(shipped)
    assert not cxx.FOLDER.exists(), f"the wheel under test has no bridge for PyTorch {torch.__version__}: the newest is not locked"
    require(shutil.which("g++"), "no g++ to compile the bridge with")
    inputs = (*(path.read_bytes() for path in bridge.SOURCES), *cxx.FLAGS, torch.__version__, once.version("g++"))
    return bridge.loaded(once.file(bridge.build, *inputs, suffix=".so"))


def overriding(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``enable`` override PyTorch's kernels by the bridge, or by Python alone, until the test ends."""
    found = native() if language == "C++" else None
    monkeypatch.setattr(bridge, "library", lambda: found)


def decided_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select in this process on a GPU, too, not in a worker: tests patch ``products.decided`` and ``slower``."""
    monkeypatch.setattr(products, "_around", lambda *_: ())


def as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have PyTorch's own kernels predicted as fast as toprung's, on a GPU, too."""
    decided_here(monkeypatch)
    monkeypatch.setattr(products, "slower", lambda call, theirs: "it is as fast")


def said(stderr: str) -> str:
    """Return what a program said, but for the line of which the binary under test, this process's alone, is no business."""
    return "\n".join(line for line in stderr.splitlines() if "no C++ binary built" not in line)


def left() -> str:
    """Return the rows of the report of products that PyTorch ran, as text."""
    return "\n".join(f"{r.op} {r.problem}: {r.why}" for r in toprung.torch.report().rows if r.left)


class Eligible:
    """Count of the products that toprung must take, by types and shapes of their tensors alone, whatever it says itself.

    One into the memory of its own operands is PyTorch's, and one into what is added, unless it is that very tensor.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.taken, self._multiply = 0, 0, overloads.multiply
        monkeypatch.setattr(overloads, "multiply", self)

    def __call__(
        self, op: str, a: Any, b: Any, bias: Any = None, beta: Any = 1, alpha: Any = 1, out: Any = None, *rest: Any, **more: Any
    ) -> Any:  # fmt: skip
        tensors = [t for t in (a, b, bias, out) if t is not None]
        others = [t.untyped_storage().data_ptr() for t in (a, b, bias) if t is not None and t.layout == torch.strided]
        apart = out is None or out is bias or out.untyped_storage().data_ptr() not in others
        plain = apart and all(t.dtype == torch.float32 and t.layout == torch.strided and t.device.type == DEVICE for t in tensors)
        counts = False
        if products.now is not None and plain and alpha != 0 and 0 not in (*a.shape, *b.shape) and a.dim() in (2, 3) and b.dim():
            deep, cols = (b.shape[0], b.shape[1:]) if b.dim() < 3 else (b.shape[1], b.shape[2:])
            fits = b.dim() == a.dim() or (a.dim(), b.dim()) == (2, 1)
            fits = fits and a.shape[-1] == deep and (a.dim() == 2 or a.shape[0] == b.shape[0])
            counts = fits and (out is None or tuple(out.shape) == (*a.shape[:-1], *cols))
        made = self._multiply(op, a, b, bias, beta, alpha, out, *rest, **more)
        self.count, self.taken = self.count + counts, self.taken + (counts and made is not None)
        return made
