"""matmul, sgemm, sgemv and plan on arrays: every kind and layout, against float64; errors, receipts, threads, memory limits."""

from __future__ import annotations

import array
import ctypes
import functools
import multiprocessing
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg.blas as scipy_blas
from hypothesis import given, settings
from hypothesis import strategies as st

import toprung
from arrays import KINDS, LAYOUTS, graded, guarded, hold
from toprung import errors, last_receipt
from toprung.arrays import pyopencl as of_pyopencl
from toprung.backends import adopt, session_for
from toprung.backends.base import Session
from toprung.blas import product
from toprung.device import Device
from toprung.execute import host, staging
from toprung.gemm.layout import Layout, tight
from toprung.gemm.lowering import Copy, Multiply, lower
from toprung.gemm.overlap import folded, share

SIDES = st.sampled_from([0, 1, 2, 3, 4, 7, 16, 31, 33, 65])
FEW = st.sampled_from([0, 1, 5, 33])  # every tile and width is a kernel to compile
SCALARS = st.sampled_from([0.0, 1.0, -1.0, 0.7, 1.3])
KIND = st.sampled_from(sorted(KINDS))
LAYOUT = st.sampled_from(LAYOUTS)

matmul = functools.partial(toprung.matmul, own=True)
sgemm = functools.partial(toprung.sgemm, own=True)
sgemv = functools.partial(toprung.sgemv, own=True)


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


@functools.cache
def queue() -> Any:
    import pyopencl as cl

    import trial

    device = trial.tested()
    assert device is not None
    return cl.CommandQueue(cl.Context([device.handle]))


@pytest.fixture(autouse=True)
def here(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host arrays go to the device under test."""
    for routine in (toprung.matmul, toprung.sgemm, toprung.sgemv):
        assert routine.__kwdefaults__ is not None
        monkeypatch.setitem(routine.__kwdefaults__, "device", None)


def kinds(kind: str, *arrays: np.ndarray) -> list[Any]:
    return [KINDS[kind][0](a, queue() if kind == "pyopencl" else None) for a in arrays]


@st.composite
def operands(draw: Any, sides: Any = SIDES) -> tuple[np.ndarray, np.ndarray]:
    """Two float32 arrays that matmul takes: vectors, matrices, batches that broadcast, in any layouts."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    m, n, k = draw(sides), draw(sides), draw(sides)
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3), (2, 1)]))
    other = draw(st.sampled_from([(), (1,), batch, batch[1:]]))
    a = (k,) if draw(st.integers(0, 4)) == 0 else (*batch, m, k)
    b = (k,) if draw(st.integers(0, 4)) == 0 else (*other, k, n)
    first, second = (hold(values(rng, *shape), draw(LAYOUT)) for shape in (a, b))
    if draw(st.integers(0, 7)) == 0 and first.ndim > 1:
        first = np.broadcast_to(first[..., :1, :], first.shape) if first.shape[-2] else first
    return first, second


def check_matmul(pair: tuple[np.ndarray, np.ndarray], kind: str, layout: str, into: bool) -> None:
    a, b = pair
    x, y = kinds(kind, a, b)
    if not into:
        graded(KINDS[kind][1](matmul(x, y)), a, b)
        return
    out, kept = guarded(np.matmul(a, b).shape, layout)
    if kind == "torch":
        out = np.array(out, order="C")  # PyTorch has no negative strides
    (target,) = kinds(kind, out)
    matmul(x, y, target)
    graded(out if kind in ("numpy", "dlpack") else KINDS[kind][1](target), a, b)
    assert kept()


@given(operands(FEW), KIND, LAYOUT, st.booleans())
@settings(max_examples=25)
def test_matmul(pair: tuple[np.ndarray, np.ndarray], kind: str, layout: str, into: bool) -> None:
    check_matmul(pair, kind, layout, into)


@pytest.mark.slow
@given(operands(), KIND, LAYOUT, st.booleans())
@settings(max_examples=700)
def test_matmul_long(pair: tuple[np.ndarray, np.ndarray], kind: str, layout: str, into: bool) -> None:
    check_matmul(pair, kind, layout, into)


def check_sgemm(sizes: tuple[int, int, int], scalars: tuple[float, float], kind: str, layouts: tuple[str, ...], flags: Any) -> None:
    (m, n, k), (alpha, beta), (trans_a, trans_b, with_c, overwrite) = sizes, scalars, flags
    rng = np.random.default_rng(m + 100 * n + 10000 * k)
    a = hold(values(rng, *((k, m) if trans_a else (m, k))), layouts[0])
    b = hold(values(rng, *((n, k) if trans_b else (k, n))), layouts[1])
    c = hold(values(rng, m, n), layouts[2]) if with_c else None
    if beta == 0 and c is not None:
        c[...] = np.nan
    if alpha == 0:
        a = np.full_like(a, np.nan)
    old = None if c is None else c.copy()
    x, y, *z = kinds(kind, a, b, *([] if c is None else [c]))
    result = sgemm(alpha, x, y, beta, *z, trans_a=trans_a, trans_b=trans_b, overwrite_c=overwrite)
    found = KINDS[kind][1](result)
    in_place = overwrite and c is not None and c.flags.f_contiguous
    assert (bool(z) and result is z[0]) == in_place or kind == "torch"
    if c is not None and not in_place and kind == "numpy":
        np.testing.assert_array_equal(c, old)
    strides = [s for s, length in zip(found.strides, found.shape, strict=True) if length > 1]
    assert kind == "pyopencl" or strides == sorted(strides) or 0 in found.shape  # column-major
    graded(found, a.T if trans_a else a, b.T if trans_b else b, alpha, beta if with_c else 0.0, old)


FLAGS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.integers(0, 1))
GEMM = (st.tuples(SCALARS, SCALARS), KIND, st.tuples(LAYOUT, LAYOUT, LAYOUT), FLAGS)


@given(st.tuples(FEW, FEW, FEW), *GEMM)
@settings(max_examples=25)
def test_sgemm(sizes: Any, scalars: Any, kind: str, layouts: Any, flags: Any) -> None:
    check_sgemm(sizes, scalars, kind, layouts, flags)


@pytest.mark.slow
@given(st.tuples(SIDES, SIDES, SIDES), *GEMM)
@settings(max_examples=700)
def test_sgemm_long(sizes: Any, scalars: Any, kind: str, layouts: Any, flags: Any) -> None:
    check_sgemm(sizes, scalars, kind, layouts, flags)


LENGTHS = st.sampled_from([1, 2, 5, 33])
STEPS = st.sampled_from([1, 2, 3, -1, -2])


def drawn(rng: np.random.Generator, least: int, extra: int, fold: int, layout: str) -> np.ndarray:
    """Return ``least + extra`` elements, rounded up to a multiple of ``fold``, as a vector or in so many rows or blocks."""
    shape = {0: (), 1: (1,), 4: (2, 2)}.get(fold, (fold,))
    count = -(-max(least + extra, 0) // max(fold, 1))
    return hold(values(rng, *shape, count), layout)


def either(call: Callable[[], Any], refusal: type[Exception]) -> Any:
    """Return what a call returns, or that it was refused."""
    try:
        return call()
    except refusal:
        return "refused"


OFFSETS = st.sampled_from([0, 1, 2, None])
FOLDS = st.tuples(st.sampled_from([-1, 0, 2]), st.sampled_from([0, 1, 2, 3, 4]), LAYOUT)


@given(st.tuples(LENGTHS, LENGTHS), st.tuples(SCALARS, SCALARS | st.none()), st.tuples(*[STEPS | st.none()] * 2),
       st.tuples(OFFSETS, OFFSETS, OFFSETS), FOLDS, FOLDS | st.none(), LAYOUT)  # fmt: skip
@settings(max_examples=200)
def test_sgemv_is_scipys(sizes: Any, scalars: Any, steps: Any, more: Any, of_x: Any, of_y: Any, layout: str) -> None:
    """Result, untouched elements, shape and refusal; vectors, matrices and blocks as x and y, None for what has a default."""
    (rows, cols), (alpha, beta), (incx, incy), (offx, offy, trans) = sizes, scalars, steps, more
    rng = np.random.default_rng(rows + 100 * cols)
    a = hold(values(rng, rows, cols), layout)
    length, depth = (cols, rows) if trans else (rows, cols)
    x, y = (
        of and drawn(rng, (off or 0) + 1 + (n - 1) * abs(inc or 1), *of)
        for of, off, n, inc in ((of_x, offx, depth, incx), (of_y, offy, length, incy))
    )
    more = (offx, incx, offy, incy, trans)
    expected = either(lambda: scipy_blas.dgemv(alpha, a.astype(float), x.astype(float), beta, y, *more), Exception)
    found = either(lambda: sgemv(alpha, a, x, beta, y, *more), ValueError)
    if isinstance(expected, str) or isinstance(found, str):
        assert found is expected, (found, expected)
        return
    assert found.shape == expected.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    receipt = last_receipt()
    assert receipt is not None and receipt.own
    if y is not None:
        mine = np.array(y, order="F")
        assert sgemv(alpha, a, x, beta, mine, *more, overwrite_y=1) is mine
        np.testing.assert_array_equal(mine, found)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_vector_of_any_kind(kind: str) -> None:
    rng = np.random.default_rng(5)
    a, x, y = values(rng, 9, 7), values(rng, 7), values(rng, 9)
    result = KINDS[kind][1](sgemv(0.7, *kinds(kind, a, x), 1.3, *kinds(kind, y)))
    graded(result[:, None], a, x[:, None], 0.7, 1.3, y[:, None])
    x, y = values(rng, 7, 2), values(rng, 3, 3)  # rows that lie one after another: their columns are joined
    result = KINDS[kind][1](sgemv(0.7, *kinds(kind, a, x), 1.3, *kinds(kind, y)))
    joined = (v.reshape(-1, 1, order="F") for v in (x, y))
    graded(result.reshape(-1, 1, order="F"), a, next(joined)[:7], 0.7, 1.3, next(joined))


def test_what_scipys_users_pass() -> None:
    assert sgemm(3, [3], [-4]).tolist() == [[-36]]
    assert sgemm(1, [1, 2], [3, 4], trans_b=1).tolist() == [[3, 4], [6, 8]]
    assert sgemm(alpha=2, a=np.arange(4).reshape(2, 2), b=[[1, 0], [0, 1]]).tolist() == [[0, 2], [4, 6]]
    assert sgemm(np.array([2.0]), [[1]], [[1.5]], True, [5]).tolist() == [8.0]
    assert sgemv(1, [1, 2], [3]).tolist() == [3, 6]
    assert sgemv(1, [[1, 2]], np.arange(4).reshape(2, 2)).tolist() == [4]
    assert matmul([[1.5, np.float64(2)], [np.float32(3), True]], [1, 2]).tolist() == [5.5, 5]
    assert sgemm(1, [[1]], [[2]], None, None, None, None).tolist() == [[2]]
    c = np.ones((2, 2), np.float32, order="F")
    eye = np.eye(2, dtype=np.float32)
    assert sgemm(1, eye, eye, 1, c, overwrite_c=1) is c
    assert c.tolist() == [[2, 1], [1, 2]]
    read_only = np.ones((2, 2), np.float32, order="F")
    read_only.flags.writeable = False
    assert sgemm(1, eye, eye, 1, read_only, overwrite_c=1) is not read_only


DOUBLE = np.ones((2, 2))
SINGLE = np.ones((2, 2), np.float32)
DOUBLES = (
    list(DOUBLE), (DOUBLE[0], [1, 2]), [np.array(1.0), np.array(2.0)], [memoryview(DOUBLE[0]), [1, 2]], memoryview(DOUBLE),
    array.array("d", [1, 2]), [array.array("d", [1, 2])] * 2, (ctypes.c_double * 2)(1, 2),
)  # fmt: skip
"""Whatever carries float64: lists of arrays, buffers, lists of buffers."""


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: matmul(DOUBLE, SINGLE), errors.BadArray, r"a is float64.*astype"),
        (lambda: matmul(SINGLE, SINGLE, np.empty((2, 2))), errors.BadArray, "Cannot cast"),
        (lambda: matmul(SINGLE, np.ones((2, 2), np.int32)), errors.BadArray, "b is int32"),
        *[(functools.partial(call, kind), errors.BadArray, r"is float64.*numpy\.asarray\(") for kind in DOUBLES for call in (
            lambda a: matmul(a, SINGLE[0]), lambda a: matmul(SINGLE, a), lambda a: sgemm(1, SINGLE, a),
            lambda a: sgemv(1, SINGLE, a),
        )],
        (lambda: matmul(SINGLE, "text"), errors.BadArray, "not an array"),
        (lambda: matmul(SINGLE, None), errors.BadArray, "NoneType"),
        (lambda: matmul(SINGLE, np.ma.masked_array(SINGLE)), errors.BadArray, "filled"),
        (lambda: matmul(SINGLE, np.float32(2)), errors.BadShape, "no dimensions"),
        (lambda: matmul(SINGLE, np.ones((3, 2), np.float32)), errors.BadShape, r"\(2\).*\(3\)"),
        (lambda: matmul(np.ones((2, 2, 2), np.float32), np.ones((3, 2, 2), np.float32)), errors.BadShape, "do not broadcast"),
        (lambda: matmul(SINGLE, SINGLE, np.empty((2, 3), np.float32)), errors.BadShape, "non-broadcastable"),
        (lambda: matmul(SINGLE, SINGLE, np.broadcast_to(np.float32(0), (2, 2))), errors.BadShape, "read-only"),
        (lambda: matmul(SINGLE, SINGLE, [1]), errors.BadArray, "out must be"),
        (lambda: matmul(SINGLE, SINGLE, precision="half"), errors.BadArgument, "auto"),
        (lambda: matmul(SINGLE, SINGLE, precision="tf32"), errors.Unsupported, "auto"),
        (lambda: matmul(SINGLE, SINGLE, device="nowhere"), errors.UnknownName, "opencl"),
        (lambda: matmul(SINGLE, SINGLE, device=3), errors.BadArgument, "device is a name"),
        (lambda: sgemm(1, DOUBLE, SINGLE), errors.BadArray, "a is float64"),
        (lambda: sgemm(1, SINGLE, SINGLE, 1, DOUBLE), errors.BadArray, "c is float64"),
        (lambda: sgemm("x", SINGLE, SINGLE), errors.BadArgument, "alpha"),
        (lambda: sgemm(1, SINGLE, SINGLE, trans_a=3), errors.BadArgument, "0, 1 or 2"),
        (lambda: sgemm(1, SINGLE, SINGLE, trans_a="T"), errors.BadArgument, "int"),
        (lambda: sgemm(1, SINGLE, np.ones((3, 2), np.float32)), errors.BadShape, "trans_a and trans_b"),
        (lambda: sgemm(1, SINGLE, SINGLE, c=np.ones((3, 3), np.float32)), errors.BadShape, "c is 3×3"),
        (lambda: sgemm(1, np.ones((2, 2, 2), np.float32), SINGLE), errors.BadShape, "matmul for batches"),
        (lambda: sgemv(1, SINGLE, [1, 2], incx=0), errors.BadArgument, "incx"),
        (lambda: sgemv(1, SINGLE, [1]), errors.BadShape, "x has 1 elements"),
        (lambda: sgemv(1, SINGLE, [1, 2], offx=-1), errors.BadShape, "begins at -1"),
        (lambda: sgemv(1, SINGLE, [1, 2], 1, [1]), errors.BadShape, "y has 1 elements"),
        (lambda: toprung.plan(SINGLE, SINGLE)(SINGLE, np.ones((2, 3), np.float32)), errors.StalePlan, "make another plan"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_runs(call: Any, error: type[Exception], says: str) -> None:
    toprung.matmul([1.0], [1.0], own=True)
    before = last_receipt()
    with pytest.raises(error, match=says) as caught:
        call()
    assert isinstance(caught.value, (TypeError, ValueError))
    assert last_receipt() is before
    np.testing.assert_array_equal(SINGLE, 1)


def test_arrays_in_two_places_are_refused() -> None:
    (there,) = kinds("pyopencl", SINGLE)
    with pytest.raises(errors.MixedPlaces, match="move one"):
        matmul(SINGLE, there)


def placed(first: int, side: int = 6) -> np.ndarray:
    """Return a column-major matrix in the memory that all of these share."""
    return SHARED[first : first + side * side].reshape(side, side).T


SHARED = np.random.default_rng(0).uniform(-1, 1, 400).astype(np.float32)
ROUTINES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": matmul,
    "matmul by NumPy": toprung.matmul,
    "matmul with a bias": lambda a, b, c: matmul(a, b, c, bias=SINGLE[0, :1]),
    "sgemm": lambda a, b, c: sgemm(1, a, b, 1, c, overwrite_c=1),
    "sgemv": lambda a, b, c: sgemv(1, a, b.T.reshape(-1)[:6], 1, c.T.reshape(-1)[:6], overwrite_y=1),
    "a plan": lambda a, b, c: toprung.plan(a, b, c, own=True),
    "a plan's call": lambda a, b, c: toprung.plan(a, b, placed(300), own=True)(a, b, c),
    "a group": lambda a, b, c: toprung.matmul_grouped([a], [b], [c], own=True),
    "a group of two": lambda a, b, c: toprung.matmul_grouped([placed(200), a], [placed(240), b], [placed(300), c], own=True),
}


@pytest.mark.parametrize("input_", ["a", "b"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_an_output_in_either_input_is_refused(routine: str, input_: str) -> None:
    """It is the input, begins in it or ends in it; also where a call like it has been remembered."""
    begin, call, before = {"a": 40, "b": 100}, ROUTINES[routine], SHARED.copy()
    a, b = (placed(first) for first in begin.values())
    for _ in range(2):
        for shift in (0, 5, -5):
            with pytest.raises(errors.Overlap, match=f"with {'x' if routine == 'sgemv' and input_ == 'b' else input_}"):
                call(a, b, placed(begin[input_] + shift))
        np.testing.assert_array_equal(SHARED, before)
        call(a, b, placed(160))  # what follows finds it again
        before = SHARED.copy()


def test_a_bias_or_another_pairs_array_may_not_hold_the_output() -> None:
    a, b, c, d = (placed(first) for first in (0, 40, 80, 120))
    for bias in (c[0], c.T):
        with pytest.raises(errors.Overlap, match="with bias"):
            matmul(a, b, c, bias=bias)
    outs = [placed(160), placed(200)]
    for i, other in enumerate(([c, b, None], [a, c, None], [a, b, c])):
        for turn in (1, -1):
            first, second, bias = zip(*[[a, b, None], other][::turn], strict=True)
            into = [c, outs[0]][::turn]
            with pytest.raises(
                errors.Overlap, match=rf"out\[{0 if turn == 1 else 1}\] shares memory with {('a', 'b', 'bias')[i]}\["
            ):
                toprung.matmul_grouped(first, second, into, bias=bias, own=True)
    with pytest.raises(errors.Overlap, match="out"):
        toprung.matmul_grouped([a, a], [b, b], [d, d], own=True)


def test_interleaved_arrays_do_not_overlap() -> None:
    whole = np.zeros((4, 8), np.float32)
    whole[:, ::2] = np.eye(4)
    out = whole[:, 1::2]
    b = np.arange(16, dtype=np.float32).reshape(4, 4)
    matmul(whole[:, ::2], b, out)
    np.testing.assert_array_equal(out, b)
    with pytest.raises(errors.Overlap):
        matmul(whole[:, ::2], b, whole[:, 3::-1])


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-6, 6)), min_size=1, max_size=3), st.integers(0, 12),
       st.lists(st.tuples(st.integers(1, 4), st.integers(-6, 6)), min_size=1, max_size=3))  # fmt: skip
@settings(max_examples=200)
def test_overlap_is_exact(one: Any, offset: int, other: Any) -> None:
    def places(dims: Any, start: int) -> list[int]:
        found = [start]
        for n, step in dims:
            found = [p + i * step for p in found for i in range(n)]
        return found

    first, second = places(one, 100), places(other, 100 + offset)
    arguments = [(4 * at, *map(tuple, zip(*dims, strict=True))) for at, dims in ((100, one), (100 + offset, other))]
    assert share(*arguments) == bool(set(first) & set(second))  # type: ignore[arg-type]
    assert folded(*arguments[0][1:]) == (len(set(first)) < len(first))  # type: ignore[arg-type]


def layout(*shape: int, fortran: bool = False) -> Layout:
    return Layout(shape, tight(shape, fortran), 4)


def test_large_temporaries_are_given_back(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (product, of_pyopencl):
        monkeypatch.setattr(module, "KEPT_BYTES", 0)
    monkeypatch.setattr(type(session), "workspace", lambda *_: pytest.fail("the session would keep them"))
    a, b = np.arange(60, dtype=np.float32).reshape(5, 12)[:, ::3], np.ones((4, 6), np.float32)
    assert np.array_equal(toprung.matmul(a, b, own=True, device=session.device), a @ b)
    there = kinds("pyopencl", hold(a, "sliced"), b)
    for _ in range(2):
        assert np.array_equal(toprung.matmul(*there, own=True).get(), a @ b)


def test_only_what_no_kernel_can_address_is_copied() -> None:
    a, b, c = layout(64, 32), layout(32, 48), layout(64, 48)
    for x in (a, layout(64, 32, fortran=True)):
        for y in (b, layout(32, 48, fortran=True)):
            for z in (c, layout(64, 48, fortran=True)):
                program = lower(x, y, z, 0)
                assert len(program.steps) == 1 and not program.copies
    strided = Layout((64, 32), (128, 2), 4)
    program = lower(strided, b, c, 0)
    assert [type(s) for s in program.steps] == [Copy, Multiply]
    assert "neither rows nor columns" in program.copies[0]
    assert len(lower(strided, Layout((32, 1), (-3, 0), 1), layout(64, 1), 0).steps) == 2  # a vector's stride is no reason


def test_a_batch_is_one_launch_wherever_it_can_be() -> None:
    a, b, c = layout(6, 8, 4), layout(6, 4, 5), layout(6, 8, 5)
    (step,) = lower(a, b, c, 0).steps
    assert step.desc.batch == 6  # type: ignore[union-attr]
    (step,) = lower(a, Layout((6, 4, 5), (0, 5, 1), 4), c, 0).steps
    assert (step.desc.batch, step.desc.M) == (1, 48)  # type: ignore[union-attr]  # one B: the As are one tall matrix
    (step,) = lower(Layout((2, 3, 8, 4), (96, 32, 4, 1), 4), Layout((2, 3, 4, 5), (60, 20, 5, 1), 4), layout(2, 3, 8, 5), 0).steps
    assert step.desc.batch == 6  # type: ignore[union-attr]


def test_a_batch_within_itself_is_written_by_way_of_a_copy() -> None:
    rng = np.random.default_rng(8)
    a, b = values(rng, 3, 5, 4), values(rng, 4, 1)
    out = np.full((3, 5, 1), np.nan, np.float32, order="F")
    graded(matmul(a, b, out), a, b)
    assert "within each other" in str(last_receipt())


def test_a_batch_that_lies_in_reverse_keeps_what_alignment_it_has() -> None:
    """Gone through forwards it begins elsewhere, where wide accesses may not be aligned any more."""
    a, b = Layout((3, 4, 8), (33, 8, 1), 4), Layout((3, 8, 4), (33, 4, 1), 4)
    (step,) = lower(a, b, Layout((3, 4, 4), (-17, 4, 1), 4), 0).steps[-1:]
    assert step.desc.align_c == 1 and step.c.offset == -34  # type: ignore[union-attr]
    (step,) = lower(a, b, Layout((3, 4, 4), (-16, 4, 1), 4), 0).steps[-1:]
    assert step.desc.align_c == 4  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 1.3])
@pytest.mark.parametrize("bytes_", [3000, 20_000])
def test_products_that_do_not_fit_are_cut_every_way(bytes_: int, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_up(bytes_, beta, monkeypatch, (50, 30, 70, 1), (3, 200, 40, 1), (9, 7, 5, 40), (0, 3, 4, 1), (4, 3, 0, 1))


def test_products_that_do_not_fit_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_up(3000, 1.3, monkeypatch, (50, 33, 65, 1), (9, 7, 5, 40), (0, 3, 4, 1), (4, 3, 0, 1))


def cut_up(bytes_: int, beta: float, monkeypatch: pytest.MonkeyPatch, *shapes: tuple[int, int, int, int]) -> None:
    monkeypatch.setenv(host.LIMIT, str(bytes_))
    rng = np.random.default_rng(1)
    for m, n, k, batch in shapes:
        a, b = hold(values(rng, batch, m, k), "sliced"), hold(values(rng, batch, k, n), "fortran")
        if batch > 1:
            graded(matmul(a, b), a, b)
            continue
        c = values(rng, m, n)
        graded(sgemm(0.7, a[0], b[0], beta, c), a[0], b[0], 0.7, beta, c)
        copies = " ".join(last_receipt().copies)  # type: ignore[union-attr]
        assert 0 in (m, n) or "host arrays" in copies
        assert bytes_ > 3000 or m != 50 or "panels" in copies


def test_a_memory_limit_too_small_for_anything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host.LIMIT, "8")
    with pytest.raises(errors.OutOfDeviceMemory, match="two panels"):
        matmul(SINGLE, SINGLE)
    monkeypatch.setenv(host.LIMIT, "many")
    with pytest.raises(errors.BadArgument, match="number of bytes"):
        matmul(SINGLE, SINGLE)


def test_panels_fit_the_budget() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        batch, rows, cols, depth = (int(x) for x in rng.integers(1, 5000, 4))
        budget = int(2 ** rng.uniform(8, 40))
        n, m, w, k = staging.cut(batch, rows, cols, depth, budget)
        assert 1 <= n <= batch and 1 <= m <= rows and 1 <= w <= cols and 1 <= k <= depth
        assert 8 * n * (m * k + k * w + m * w) <= budget


def test_a_cpu_device_computes_on_the_hosts_memory() -> None:
    matmul(SINGLE, SINGLE)
    assert last_receipt().copies == ()  # type: ignore[union-attr]


def test_nothing_is_read_that_blas_does_not_read() -> None:
    bad = np.full((3, 3), np.nan, np.float32, order="F")
    assert sgemm(1, np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), 0, bad.copy("F"), overwrite_c=1).trace() == 3
    assert not sgemm(0, bad, bad).any()
    assert sgemm(0, bad, bad, 2, np.ones((3, 3), np.float32)).sum() == 18
    assert sgemm(1e-50, bad, bad).sum() == 0  # nothing, in float32
    product = matmul(np.array([[np.inf, 1], [0, 1]], np.float32), np.array([[0, 1], [1, np.nan]], np.float32))
    assert np.isnan(product[0]).all() and product[1, 0] == 1 and np.isnan(product[1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(70_000, 3, 4, 5), (70_000, 1, 2, 1)])
def test_a_batch_beyond_the_grids_limit(shape: tuple[int, ...]) -> None:
    batch, m, n, k = shape
    rng = np.random.default_rng(3)
    a, b = values(rng, batch, m, k), values(rng, batch, k, n)
    out, kept = guarded((batch, m, n), "wide")
    matmul(a, b, out)
    graded(out, a, b)
    assert kept()
    graded(matmul(a, b[0]), a, b[0])


def test_the_receipt_says_what_ran() -> None:
    a, b = kinds("pyopencl", hold(SINGLE, "sliced"), SINGLE)
    matmul(a, b)
    receipt = last_receipt()
    assert receipt is not None
    text = str(receipt)
    assert "matmul 2×2 · 2×2 in fp32 on opencl" in text and f"ran: {receipt.kernel} " in text and "copied: A 2×2: neither" in text
    assert receipt.own and receipt.kernel == "tiled" and receipt.launches == 2
    other: list[Any] = []
    worker = threading.Thread(target=lambda: other.append(last_receipt()))
    worker.start()
    worker.join()
    assert other == [None]
    matmul(SINGLE, SINGLE, precision="fp32x")
    assert last_receipt().precision == "fp32" and "fp32x" in str(last_receipt())  # type: ignore[union-attr]


def test_routing_takes_what_was_there(device: Device) -> None:
    """own=False: without a GPU NumPy's BLAS, unless a device is named."""
    result = toprung.matmul(SINGLE, SINGLE)
    receipt = last_receipt()
    assert receipt is not None
    np.testing.assert_array_equal(result, 2)
    if device.kind == "cpu" and toprung.devices()[0].kind == "cpu":
        assert receipt.kernels == ("numpy",) and not receipt.own and receipt.passed_over
        c = np.full((2, 2), np.nan, np.float32, order="F")
        assert toprung.sgemm(0.5, SINGLE, SINGLE, 0, c, overwrite_c=1) is c
        np.testing.assert_array_equal(c, 1)
        np.testing.assert_array_equal(toprung.sgemm(0, SINGLE * np.nan, SINGLE, 3, SINGLE), 3)
        np.testing.assert_array_equal(toprung.sgemm(1, SINGLE, SINGLE, 3, SINGLE), 5)
    toprung.matmul(SINGLE, SINGLE, device=device)
    assert last_receipt().own and str(device) == last_receipt().device  # type: ignore[union-attr]


def test_routing_weighs_transfers_against_the_hosts_arithmetic(device: Device) -> None:
    from dataclasses import replace

    gpu = replace(device, kind="gpu")
    blas = host.host_blas()
    assert blas is not None and "longer" in host.preferred(blas, gpu, (64, 64), (64, 64))
    assert host.preferred(blas, gpu, (8192, 8192), (8192, 8192)) == ""
    assert "longer" in host.preferred(blas, gpu, (8192, 8192), (8192, 1))
    assert "longer" in host.preferred(blas, gpu, (2**31, 1), (1, 1))  # more than a kernel takes, not more than NumPy does


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_plan_gives_what_matmul_gives(kind: str) -> None:
    rng = np.random.default_rng(4)
    a, b = values(rng, 33, 17), values(rng, 17, 20)
    x, y = kinds(kind, a, b)
    plan = toprung.plan(x, y, own=True)
    graded(KINDS[kind][1](plan(x, y)), a, b)
    out, kept = guarded((33, 20), "plain")
    (target,) = kinds(kind, out)
    plan(x, y, out=target)
    graded(out if kind == "dlpack" else KINDS[kind][1](target), a, b)
    assert kept() and "33×17" in str(plan)
    for other in (guarded((33, 20), "fortran")[0], np.empty((3, 33, 20), np.float32)):
        graded(KINDS[kind][1](toprung.plan(x, y, *kinds(kind, other), own=True)(x, y)), a, b)  # without the plan's out
    with pytest.raises(errors.StalePlan, match="make another"):
        plan(y, x)


def test_the_same_call_gives_the_same_bits() -> None:
    rng = np.random.default_rng(6)
    a, b = values(rng, 130, 257), values(rng, 257, 65)
    first = matmul(a, b)
    for _ in range(3):
        np.testing.assert_array_equal(matmul(a.copy(), b.copy()).view(np.uint32), first.view(np.uint32))


def test_two_threads_two_queues_one_cache() -> None:
    import pyopencl as cl

    rng = np.random.default_rng(7)
    sizes = [(33, 20, 17), (5, 64, 31), (64, 1, 40), (1, 33, 8)]
    failures: list[BaseException] = []

    def work(seed: int, on: Any) -> None:
        try:
            mine = np.random.default_rng(seed)
            for _ in range(25):
                m, n, k = sizes[mine.integers(len(sizes))]
                a, b = values(mine, m, k), values(mine, k, n)
                graded(matmul(hold(a, "sliced"), b), a, b)
                x, y = (KINDS["pyopencl"][0](v, on) for v in (a, b))
                graded(KINDS["pyopencl"][1](matmul(x, y)), a, b)
        except BaseException as error:
            failures.append(error)

    del rng
    queues = [cl.CommandQueue(queue().context) for _ in range(2)]
    workers = [threading.Thread(target=work, args=(i, q)) for i, q in enumerate(queues)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]


def _in_child(results: Any, there: list[Any]) -> None:
    for operands_ in ([SINGLE, SINGLE], there):
        try:
            toprung.matmul(*operands_, own=True)
            results.put("computed")
        except errors.ForkedDevice as error:
            results.put(f"refused: {error}")


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_so() -> None:
    there = kinds("pyopencl", SINGLE, SINGLE, np.empty((2, 2), np.float32))
    matmul(SINGLE, SINGLE)
    matmul(*there)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(results, there))
    child.start()
    child.join(600)
    assert child.exitcode == 0
    assert "spawn" in results.get()
    assert "spawn" in results.get()


def test_arrays_of_one_context_share_a_session() -> None:
    (a,) = kinds("pyopencl", SINGLE)
    assert adopt(a.queue) is adopt(queue())
    assert session_for(toprung.devices()[0]) is session_for(toprung.devices()[0])


def test_host_arrays_of_a_type_that_a_gpu_has_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a product of PyTorch's CUDA tensors: CPU tensors have the same type, and there may be no CPU device at all."""
    from toprung.arrays import sessions
    from toprung.arrays.numpy import adapter
    from toprung.blas import calls as warm
    from toprung.blas import operands, product

    def nowhere(*_: Any) -> None:
        raise errors.NoDevice("no device has the host's memory")

    monkeypatch.setattr(warm, "_adapters", {np.ndarray: adapter})
    for module in (operands, product, sessions):
        monkeypatch.setattr(module, "session_at", nowhere)
    monkeypatch.setattr(host, "limit", lambda: 1 << 28)  # by way of a device's own memory, as with a GPU
    rng = np.random.default_rng(4)
    a, b = values(rng, 9, 8), values(rng, 8, 7)
    for _ in range(2):
        graded(matmul(a, b), a, b)
        out = np.full((9, 7), np.nan, np.float32)
        assert matmul(a, b, out) is out
        graded(out, a, b)
        graded(toprung.plan(a, b, own=True)(a, b), a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_host_arrays_go_by_way_of_a_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind, where the only device has memory of its own; the result is of the kind that went in."""
    if kind == "pyopencl":
        pytest.skip("its arrays are the device's")
    monkeypatch.setattr(host, "limit", lambda: 1 << 28)
    rng = np.random.default_rng(5)
    a, b = values(rng, 9, 8), values(rng, 8, 7)
    made, fetch = KINDS[kind]
    found = matmul(made(a, None), made(b, None))
    graded(fetch(found), a, b)
    assert last_receipt().copies  # type: ignore[union-attr]
    if kind != "dlpack":
        assert type(found) is type(made(a, None))


def test_results_that_toprung_makes_itself_are_operands() -> None:
    """CUDA arrays that speak one protocol only get an array of ours, which every adapter that makes one must take."""
    from toprung.arrays import adapter_of, adapters
    from toprung.arrays.cuda_interface import LEGACY, DeviceArray

    class NoMemory:
        handle = 0

    made = DeviceArray(NoMemory(), (2, 0), (0, 4), LEGACY, 0)  # type: ignore[arg-type]
    owner = adapter_of(made)
    assert owner is not None and owner.name == "__cuda_array_interface__"
    for adapter in adapters():
        if adapter.order:  # a protocol's
            found = adapter.operand(made, "the result")
            assert (found.shape, found.strides, found.home.kind) == ((2, 0), (0, 1), "cuda")
