"""Arrays of every kind that this machine has, and hostile layouts, for the tests of the library."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import once
from conftest import require
from toprung import last_receipt
from toprung.arrays.torch import adapter as torch_adapter
from toprung.backends import cxx, native_plan
from toprung.blas import calls
from toprung.kernels.registry import family
from toprung.oracle.precision import precision
from toprung.oracle.problem import UNIT_ROUNDOFF

GAP = np.float32(np.nan)
GUARD = 64
CANARY = np.uint32(0x3F9E0651)


class Handed:
    """An array that says nothing of itself but DLPack's two words."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **more: Any) -> Any:
        return self.array.__dlpack__(**more)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def on_queue(array: np.ndarray, queue: Any) -> Any:
    """Return the elements in their layout, gaps and all, as a pyopencl array."""
    import pyopencl.array as cla

    base = array if array.base is None else array.base
    while base.base is not None:
        base = base.base
    if base.size == 0:
        return cla.empty(queue, array.shape, np.float32)
    memory = cla.to_device(queue, base.ravel("K"))
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return cla.Array(queue, array.shape, np.float32, data=memory.base_data, offset=offset, strides=array.strides)


KINDS: dict[str, tuple[Callable[[np.ndarray, Any], Any], Callable[[Any], np.ndarray]]] = {
    "numpy": (lambda a, _: a, np.asarray),
    "dlpack": (lambda a, _: Handed(a), lambda c: c.array if isinstance(c, Handed) else np.asarray(c)),
    "pyopencl": (on_queue, lambda c: _fetched(c)),
}
"""Kind of array → how to make one of a NumPy array, and how to read a result."""

ENTRIES = ["Python", "C++"] if importlib.util.find_spec("torch") else ["Python"]
"""Languages in which a call like an earlier one is found."""


@functools.cache
def entry() -> Any:
    """Return the extension module: that of the wheel under test, else compiled once for all runs."""
    if (shipped := cxx.FOLDER / native_plan.NAME).is_file():
        return native_plan.loaded(shipped)
    require(shutil.which("g++"), "no g++ to compile the entry with")
    inputs = (*(path.read_bytes() for path in native_plan.ENTRY), *cxx.FLAGS, sys.version, once.version("g++"))
    return native_plan.loaded(once.file(native_plan.build, *inputs, suffix=".so"))


def enter(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls on tensors, on the host too, be found by Python or by the extension module until the test ends."""
    monkeypatch.setattr(calls, "again", calls._again)
    monkeypatch.setattr(native_plan, "entry", entry if language == "C++" else lambda: None)
    calls.forget()
    if language == "C++":
        calls.enter(torch_adapter)
        assert calls.again is entry().again


if importlib.util.find_spec("torch"):

    def _tensor(array: np.ndarray, _: Any) -> Any:
        import torch

        if any(s < 0 for s in array.strides):  # PyTorch has none of these
            array = array.copy()
        return torch.from_numpy(array)

    KINDS["torch"] = (_tensor, lambda c: c.numpy())


def _fetched(array: Any) -> np.ndarray:
    """Return the elements of a pyopencl array of any strides."""
    import pyopencl as cl

    if not array.size:
        return np.empty(array.shape, np.float32)
    host = np.empty(array.base_data.size // 4, np.float32)
    cl.enqueue_copy(array.queue, host, array.base_data)
    return np.ndarray(array.shape, np.float32, host, array.offset, array.strides).copy()


def hold(values: np.ndarray, layout: str) -> np.ndarray:
    """An array of the same values that lies otherwise, NaN in every gap."""
    if values.ndim == 0:
        return values
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "wide":  # a leading dimension larger than the width
        base = np.full((*values.shape[:-1], values.shape[-1] + 3), GAP)
        base[..., 1:-2] = values
        return base[..., 1:-2]
    if layout == "sliced":
        base = np.full(tuple(2 * n for n in values.shape), GAP)
        view = base[tuple(slice(None, None, 2) for _ in values.shape)]
        view[...] = values
        return view
    if layout == "reversed":
        return values[tuple(slice(None, None, -1) for _ in values.shape)].copy()[tuple(slice(None, None, -1) for _ in values.shape)]
    if layout == "shifted":  # aligned to no more than one float
        base = np.empty(values.size + 1, np.float32)
        base[1:] = values.ravel()
        base[0] = GAP
        return base[1:].reshape(values.shape)
    return np.ascontiguousarray(values)


LAYOUTS = ("plain", "fortran", "wide", "sliced", "reversed", "shifted")


def guarded(shape: tuple[int, ...], layout: str) -> tuple[np.ndarray, Callable[[], bool]]:
    """An output full of NaN between guards, and whether everything around it is as it was."""
    sizes = shape
    if layout == "sliced" and shape:
        sizes = tuple(2 * n + 2 for n in shape)
    elif layout == "wide" and shape:
        sizes = (*shape[:-1], shape[-1] + 3)
    flat = np.full(int(np.prod(sizes)) + 2 * GUARD, CANARY, np.uint32).view(np.float32)
    whole = flat[GUARD : flat.size - GUARD].reshape(sizes, order="F" if layout == "fortran" else "C")
    out = whole
    if layout == "sliced" and shape:
        out = whole[tuple(slice(1, 2 * n + 1, 2) for n in shape)]
    elif layout == "wide" and shape:
        out = whole[..., : shape[-1]]
    elif layout == "reversed" and shape:
        out = whole[tuple(slice(None, None, -1) for _ in shape)]
    out[...] = np.nan
    before = flat.copy()

    def kept() -> bool:
        now = flat.copy()
        offset = out.__array_interface__["data"][0] - flat.__array_interface__["data"][0]
        inside = np.ndarray(out.shape, np.float32, now, offset, out.strides)
        inside[...] = np.nan
        return bool(np.array_equal(now.view(np.uint32), before.view(np.uint32)))

    return out, kept


def graded(found: Any, a: np.ndarray, b: np.ndarray, alpha: float = 1.0, beta: float = 0.0, c: np.ndarray | None = None) -> None:
    """Hold a result to the grade ratio of fp32 against float64, and the receipt to its word that the kernel was ours."""
    wide = [x.astype(np.float64) for x in (a, b)]
    reference = alpha * np.matmul(*wide) if alpha else np.zeros(np.matmul(*wide).shape)
    size = abs(alpha) * np.matmul(*map(np.abs, wide)) if alpha else 0 * reference
    if beta and c is not None:
        reference, size = reference + beta * c.astype(np.float64), size + abs(beta) * np.abs(c.astype(np.float64))
    found = np.asarray(found)
    assert found.dtype == np.float32
    assert found.shape == np.shape(reference)
    limit = precision("fp32").limit(a.shape[-1] + 2, 16)
    assert np.all(np.abs(found - reference) <= limit * UNIT_ROUNDOFF * size + 2.0**-140), last_receipt()
    receipt = last_receipt()
    assert receipt is not None and receipt.own
    families = [family(k.partition(" ")[0]) for k in receipt.kernels]
    assert all(f.own and f.precision == "fp32" and f.memory == "device" for f in families)
