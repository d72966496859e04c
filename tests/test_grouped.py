"""matmul_grouped: products of unequal shapes in one call, and what is refused before anything is written."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import toprung
from toprung import errors
from toprung.device import Device

RNG = np.random.default_rng(0)
SHAPES = ((5, 7, 6), (1, 40, 3), (33, 2, 17), (0, 4, 5), (6, 0, 2), (64, 64, 64))


def drawn(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def close(found: Any, a: Any, b: Any, bias: Any = 0.0) -> bool:
    exact = np.matmul(np.float64(a), np.float64(b)) + bias
    return found.shape == exact.shape and bool((np.abs(found - exact) <= 64 * 2.0**-24 * (np.abs(a) @ np.abs(b) + 1)).all())


@pytest.mark.parametrize("own", [False, True])
def test_each_pair_is_matmuls(device: Device, own: bool) -> None:
    more: Any = {"own": True, "device": device.id} if own else {}
    a, b = [drawn(m, k) for m, k, _ in SHAPES], [drawn(k, n) for _, k, n in SHAPES]
    found = toprung.matmul_grouped(a, b, **more)
    assert len(found) == len(SHAPES) and all(close(*three) for three in zip(found, a, b, strict=True))
    outs = [np.full((m, 2 * n), np.nan, np.float32)[:, ::2] for m, _, n in SHAPES]
    biases = [drawn(n) if n % 2 else None for _, _, n in SHAPES]
    same = toprung.matmul_grouped(a, b, outs, bias=biases, **more)
    assert all(x is y for x, y in zip(same, outs, strict=True))
    assert all(close(x, y, z, 0.0 if v is None else v) for x, y, z, v in zip(outs, a, b, biases, strict=True))
    assert toprung.matmul_grouped([], []) == []


def test_experts_share_one_array_of_rows(device: Device) -> None:
    """Rows of an array, a group of them for each expert's weights, and results into rows of another."""
    rows, weights = drawn(30, 8), [drawn(8, 6) for _ in range(4)]
    ends = [0, 11, 11, 12, 30]
    parts = [slice(x, y) for x, y in itertools.pairwise(ends)]
    out = np.full((30, 6), np.nan, np.float32)
    tokens, into = ([x[p] for p in parts] for x in (rows, out))
    toprung.matmul_grouped(tokens, weights, into, activation="relu", own=True, device=device.id)
    wanted = np.concatenate([np.maximum(np.float64(rows[p]) @ np.float64(w), 0) for p, w in zip(parts, weights, strict=True)])
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_prepacked_operands_and_batches() -> None:
    a, b = [drawn(3, 4, 5), drawn(5)], [drawn(5, 2), drawn(5, 7)]
    found = toprung.matmul_grouped(a, [toprung.prepack(b[0]), b[1]])
    assert close(found[0], a[0], b[0]) and found[1].shape == (7,)


def test_what_is_wrong_with_a_pair_is_said_and_nothing_is_written(device: Device) -> None:
    a, b = [drawn(4, 5), drawn(2, 3)], [drawn(5, 6), drawn(3, 3)]
    outs = [np.full((4, 6), 7, np.float32), np.full((2, 3), 7, np.float32)]
    bad: tuple[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]], ...] = (
        (errors.BadShape, "pair 1: ", (a, [b[0], drawn(4, 3)], outs), {}),
        (errors.BadArray, "pair 1: ", (a, [b[0], b[1].astype(np.float64)], outs), {}),
        (errors.BadShape, "pair 1: ", (a, b, [outs[0], np.zeros((3, 3), np.float32)]), {}),
        (errors.BadShape, "pair 1: ", (a, b, outs), {"bias": [None, drawn(2)]}),
        (errors.Overlap, r"out\[0\] shares memory with out\[1\]|out\[1\] shares", (a, b, [outs[0], outs[0][:2, :3]]), {}),
        (errors.BadArgument, "a has 2 arrays and b has 1", (a, b[:1], outs), {}),
        (errors.BadArgument, "a sequence of arrays", (drawn(2, 3, 4), b), {}),
        (errors.BadArgument, "a sequence of arrays", (a, iter(b)), {}),
        (errors.BadArgument, "a sequence of arrays, not dict: pass a list", (dict(enumerate(a)), b), {}),
        (errors.BadArgument, "a sequence of arrays, not set: pass a list", (a, set("ab")), {}),
        (errors.BadArgument, "activation", (a, b, outs), {"activation": "selu"}),
        (errors.BadArgument, "^activation is one of .*, not list", (a, b, outs), {"activation": ["relu"]}),
        (errors.BadArgument, "^precision is one of", (a, b, outs), {"precision": ["fp32"]}),
        (errors.BadArgument, "^precision is one of", ([], []), {"precision": "fp64"}),
        (errors.BadArray, "pair 0: bias is prepacked", (a, b, outs), {"bias": [toprung.prepack(b[0]), None]}),
    )  # fmt: skip
    for more in ({}, {"own": True, "device": device.id}):
        for error, says, arguments, options in bad:
            with pytest.raises(error, match=says):
                toprung.matmul_grouped(*arguments, **options, **more)
        assert all((x == 7).all() for x in outs)
    with pytest.raises(errors.BadArgument, match=r"^own is True or False"):
        toprung.matmul_grouped(a, b, outs, own=[1])  # type: ignore[arg-type]
    assert all((x == 7).all() for x in outs)


def test_a_result_in_another_pairs_operand_is_refused() -> None:
    whole = drawn(8, 8)
    other = drawn(8, 8)
    with pytest.raises(errors.Overlap, match=r"out\[0\] shares memory with b\[1\]"):
        toprung.matmul_grouped([other, other], [other, whole], [whole[:, :], np.empty((8, 8), np.float32)])
    left, right = np.empty((8, 8), np.float32)[:, ::2], np.empty((8, 8), np.float32)[:, 1::2]
    toprung.matmul_grouped([other, other], [other[:, :4], other[:, 4:]], [left, right])
    assert close(left, other, other[:, :4]) and close(right, other, other[:, 4:])


def test_pyopencl_arrays_without_an_epilogue(device: Device) -> None:
    """Arrays in a device's memory, of families that have no epilogue of their own."""
    cl, arrays = pytest.importorskip("pyopencl"), pytest.importorskip("pyopencl.array")
    if device.backend != "opencl":
        pytest.skip("these are OpenCL's arrays")
    context = cl.Context([next(d for p in cl.get_platforms() for d in p.get_devices() if d.name.strip() == device.name)])
    queue = cl.CommandQueue(context)
    a, b = [drawn(33, 20), drawn(70, 65), drawn(64, 70)], [drawn(20, 17), drawn(65, 80), drawn(70, 40)]
    found = toprung.matmul_grouped([arrays.to_device(queue, x) for x in a], [arrays.to_device(queue, x) for x in b])
    assert all(close(z.get(), x, y) for x, y, z in zip(a, b, found, strict=True))
    left = toprung.last_receipt()
    assert left is not None and (left.operation, left.launches, left.precision) == ("matmul_grouped", 3, "fp32")
    assert left.problem == "3 products, 33×20 · 20×17 to 64×70 · 70×40"
