"""SciPy's and NumPy's own tests of these functions, as they come with the installed packages, pointed at ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy._core.tests import test_multiarray as numpy_tests
from scipy.linalg.tests import test_blas as scipy_simple
from scipy.linalg.tests import test_fblas as scipy_strided

import toprung
from toprung.blas.receipt import last_receipt, leave
from toprung.device import Device

OURS = {name: functools.partial(getattr(toprung, name), own=True) for name in ("matmul", "sgemm", "sgemv")}


@pytest.fixture(autouse=True)
def our_kernel_ran(device: Device) -> Iterator[None]:
    """After each test: if anything was computed, it was by our kernels."""
    leave(None)  # type: ignore[arg-type]
    yield
    receipt = last_receipt()
    assert receipt is None or receipt.own


@pytest.mark.parametrize("routine", ["gemm", "gemv"])
def test_scipy_simple(routine: str) -> None:
    owner = scipy_simple.TestFBLAS3Simple if routine == "gemm" else scipy_simple.TestFBLAS2Simple
    test = getattr(owner, f"test_{routine}")
    test(owner(), OURS[f"s{routine}"], np.float32)
    receipt = last_receipt()
    assert receipt and receipt.own and receipt.kernels


class TestSciPyStrided(scipy_strided.BaseGemv):
    """BaseGemv: transposes, strides of x and y, and the errors for vectors that are too short."""

    blas_func = staticmethod(OURS["sgemv"])
    dtype = np.float32


SKIPPED = {
    "test_matmul_object": "Python objects",
    "test_matmul_object_type_scalar": "Python objects",
    "test_matmul_empty": "Python objects",
    "test_matmul_exception_multiply": "Python objects",
    "test_matmul_exception_add": "Python objects",
    "test_matmul_bool": "booleans",
}
"""Tests of other dtypes alone. Within the others, dtypes are taken down to float32."""


def _matmul(a: Any, b: Any, *more: Any, **named: Any) -> Any:
    """Ours; NumPy's for the booleans and the complex output that some tests turn to after float32."""
    if np.asarray(a).dtype == bool or np.iscomplexobj(named.get("out")):
        return np.matmul(a, b, *more, **named)
    return OURS["matmul"](a, b, *more, **named)


class _NumPy:
    """The tests' ``np``: its matmul is ours, and floating-point arrays are float32 unless a test asks for another type."""

    def __init__(self) -> None:
        self.matmul = _matmul

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name not in ("ones", "zeros", "array", "arange", "empty"):
            return found

        @functools.wraps(found)
        def float32(*args: Any, dtype: Any = None, **more: Any) -> Any:
            if dtype in (float, np.float64):
                dtype = np.float32
            made = found(*args, dtype=dtype, **more)
            return made.astype(np.float32) if dtype is None and isinstance(made, np.ndarray) else made

        return float32


def _parameters(test: Any) -> list[tuple[str, Any]]:
    """(parameter, value) for each case of a parametrised test; one without for others."""
    marks = [m for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"]
    if not marks:
        return [("", None)]
    (mark,) = marks
    return [(mark.args[0], value) for value in mark.args[1]]


def _lowered(value: Any) -> Any:
    """float64 arrays among a test's parameters as float32, strides kept."""
    if isinstance(value, tuple):
        return tuple(_lowered(v) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    base = value if value.base is None else value.base
    like = base.astype(np.float32)
    offset = (value.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 2
    return np.ndarray(value.shape, np.float32, like, offset, tuple(s // 2 for s in value.strides))


def _cases() -> list[Any]:
    found = []
    for name, test in inspect.getmembers(numpy_tests.TestMatmul, inspect.isfunction):
        if name.startswith("test_"):
            for i, (parameter, value) in enumerate(_parameters(test)):
                marks = [pytest.mark.skip(reason=f"about {SKIPPED[name]}, not float32")] if name in SKIPPED else []
                if parameter == "dtype" and value is not np.float32:
                    marks.append(pytest.mark.skip(reason=f"about {value.__name__}, not float32"))
                found.append(pytest.param(name, parameter, value, id=f"{name}-{i}" if parameter else name, marks=marks))
    return found


@pytest.mark.parametrize(("name", "parameter", "value"), _cases())
def test_numpy(name: str, parameter: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = numpy_tests.TestMatmul()
    monkeypatch.setattr(numpy_tests, "np", _NumPy())
    monkeypatch.setattr(numpy_tests.TestMatmul, "types", "f")
    monkeypatch.setattr(numpy_tests.TestMatmul, "matmul", staticmethod(_matmul))
    getattr(case, name)(**({parameter: _lowered(value)} if parameter else {}))
