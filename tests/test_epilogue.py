"""matmul(…, bias=, activation=): on the host, on a device, on strided arrays, in batches, of vectors, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import toprung
from toprung import errors
from toprung.backends import nvrtc
from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.epilogue import ACTIVATIONS
from toprung.kernels.helpers import MOVE

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def reference(a: Any, b: Any, bias: Any, activation: str | None) -> Any:
    with np.errstate(all="ignore"):
        c = np.matmul(a.astype(np.float64), b.astype(np.float64)) + (0 if bias is None else np.asarray(bias, np.float64))
        if activation == "relu":
            return np.maximum(c, 0)
        if activation == "gelu":
            return 0.5 * c * (1 + np.tanh(math.sqrt(2 / math.pi) * (c + 0.044715 * c**3)))
        return c


def close(found: Any, a: Any, b: Any, bias: Any = None, activation: str | None = None) -> bool:
    """Return True if no element is further off than rounding in fp32 may bring it."""
    size = np.matmul(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)) + (0 if bias is None else np.abs(np.asarray(bias)))
    exact = reference(a, b, bias, activation)
    return found.shape == exact.shape and bool((np.abs(found - exact) <= (a.shape[-1] + 30) * 2.0**-24 * (size + 1)).all())


SHAPES = (((5, 7), (7, 6)), ((2, 3, 5, 7), (3, 7, 6)), ((7,), (7, 6)), ((5, 7), (7,)), ((4, 7), (2, 7, 3)), ((33, 65), (65, 47)))


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("own", [False, True])
def test_what_is_added_and_what_it_goes_through(device: Device, own: bool, activation: str | None) -> None:
    for first, second in SHAPES:
        a, b = drawn(*first), drawn(*second)
        shape = np.matmul(a, b).shape
        for of in (None, (), shape[-1:], (*shape[:-1], 1), (1,) * len(shape), shape):
            bias = None if of is None else drawn(*of)
            if bias is None and activation is None:
                continue
            found = toprung.matmul(a, b, bias=bias, activation=activation, own=own, **({"device": device.id} if own else {}))
            assert close(found, a, b, bias, activation), (first, second, of)


@pytest.mark.parametrize("name", ["numpy", "device"])
def test_strides_out_and_what_stands_around_it(name: str, device: Device) -> None:
    more: Any = {} if name == "numpy" else {"own": True, "device": device.id}
    a, b, bias = drawn(12, 20)[::2, ::-1], drawn(20, 9).T.copy().T, drawn(18)[::-2]
    whole = np.full((8, 30), np.nan, np.float32)
    out = whole[1:7, 2:29:3]
    assert toprung.matmul(a, b, out, bias=bias, activation="gelu", **more) is out
    assert close(out, a, b, bias, "gelu")
    before = out.copy()
    toprung.matmul(a, b, out, bias=out, activation="relu", **more)
    assert close(out, a, b, before, "relu")
    out[...] = 0
    assert np.isnan(whole).sum() == 8 * 30 - 6 * 9
    into = np.full((3, 6, 9), np.nan, np.float32)
    toprung.matmul(a, b, into, bias=drawn(1, 9) * 0, activation="relu", **more)
    assert all(close(one, a, b, None, "relu") for one in into), "a larger batch is filled by repetition"


def test_an_empty_sum_is_the_bias_and_an_empty_result_nothing(device: Device) -> None:
    bias = drawn(4)
    for more in ({}, {"own": True, "device": device.id}):
        found = toprung.matmul(np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), bias=bias, activation="relu", **more)
        assert np.array_equal(found, np.broadcast_to(np.maximum(bias, 0), (3, 4)))
        assert toprung.matmul(np.zeros((0, 2), np.float32), np.zeros((2, 4), np.float32), bias=bias, **more).shape == (0, 4)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_what_is_no_number_stays_none(device: Device, activation: str) -> None:
    values = np.array([[np.nan, np.inf, 1e30, -1e30, -0.0, 0.0, 1e-40, -20.0]], np.float32)
    one = np.ones((1, 1), np.float32)
    for more in ({}, {"own": True, "device": device.id}):
        found = toprung.matmul(one, values, activation=activation, **more)[0]
        assert np.isnan(found[0]) and found[1] == np.inf and found[2] == np.float32(1e30)
        assert (found[3:6] == 0).all() and found[7] <= 0 and abs(found[7]) < 1e-30


def test_the_bias_is_rounded_once(device: Device) -> None:
    """A·B = 2⁻²⁴ and a bias of 1 − 2⁻²⁴ are 1, whatever was added first."""
    a, b = np.full((1, 1), 2.0**-12, np.float32), np.full((1, 1), 2.0**-12, np.float32)
    bias = np.float32([1 - 2.0**-24])
    for more in ({}, {"own": True, "device": device.id}):
        assert toprung.matmul(a, b, bias=bias, **more)[0, 0] == 1


def test_a_prepacked_operand_takes_an_epilogue() -> None:
    a, b, bias = drawn(6, 8), drawn(8, 5), drawn(5)
    assert close(toprung.matmul(a, toprung.prepack(b), bias=bias, activation="relu"), a, b, bias, "relu")


def test_what_does_not_fit_is_refused_and_nothing_is_written(device: Device) -> None:
    a, b, out = drawn(4, 5), drawn(5, 6), np.full((4, 6), 7, np.float32)
    bad: tuple[tuple[type[Exception], dict[str, Any]], ...] = (
        (errors.BadShape, {"bias": drawn(4)}), (errors.BadShape, {"bias": drawn(1, 1, 6)}),
        (errors.BadShape, {"bias": drawn(2, 6)}),
        (errors.BadArray, {"bias": drawn(6).astype(np.float64)}), (errors.BadArray, {"bias": "six"}),
        (errors.BadArgument, {"activation": "tanh"}), (errors.BadArgument, {"activation": 1}), (errors.Overlap, {"bias": out[0]}),
    )  # fmt: skip
    for more in ({}, {"own": True, "device": device.id}):
        for error, options in bad:
            with pytest.raises(error):
                toprung.matmul(a, b, out, **options, **more)
        assert (out == 7).all()


def test_pyopencl_arrays(device: Device, session: Session) -> None:
    cl, arrays = pytest.importorskip("pyopencl"), pytest.importorskip("pyopencl.array")
    if device.backend != "opencl":
        pytest.skip("these are OpenCL's arrays")
    context = cl.Context([next(d for p in cl.get_platforms() for d in p.get_devices() if d.name.strip() == device.name)])
    queue = cl.CommandQueue(context)
    a, b, bias = drawn(33, 20), drawn(20, 17), drawn(17)
    x, y, z = (arrays.to_device(queue, v) for v in (a, b, bias))
    toprung.matmul(x, y)
    alone = toprung.last_receipt().launches  # type: ignore[union-attr]
    assert close(toprung.matmul(x, y, bias=z, activation="gelu").get(), a, b, bias, "gelu")
    assert toprung.last_receipt().launches == alone + 2  # type: ignore[union-attr]


@pytest.mark.parametrize("number", ACTIVATIONS.values())
def test_the_kernel_compiles_for_gpus(number: int) -> None:
    if nvrtc.missing():
        pytest.skip(nvrtc.missing())
    gpu = dataclasses.replace(nvrtc.device_of("sm_90"), compute_units=132)
    source = MOVE.source_for(MOVE.tile_for(gpu), {"ACTIVATION": number}, gpu)
    assert nvrtc.compile_cubin(source, "sm_90").code
