"""CuPy's products with toprung enabled: what is taken at which seam, what is left, and that CuPy's own come back.

Tests named ``on_a_gpu`` need one. The others lay CuPy arrays over the host's memory, which CuPy allows as long as nothing is
launched, and have PoCL multiply them. Products that are CuPy's cannot run there: that CuPy's function is reached is what is tested.
Without the packages that tests/conftest.py wants: ``python -m pytest --noconftest tests/test_cupy_enable.py``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import toprung
from toprung import errors
from toprung.arrays.base import HOST, Home, Operand
from toprung.arrays.cupy import CuPy

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install cupy-cuda13x")

import toprung.cupy  # noqa: E402  # needs CuPy
from toprung.cupy import products, seams  # noqa: E402

try:
    GPUS = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    GPUS = 0

gpu = pytest.mark.skipif(not GPUS, reason="there is no CUDA device")
EVERY: dict[str, Any] = {"own": True, "min_flops": 0}
"""Settings with which every product runs on toprung's kernels."""

OWN = [vars(owner).get(name) for owner, name, _ in seams.SEAMS]
"""CuPy's own functions at the seams, as long as nobody has changed them."""

RNG = np.random.default_rng(26)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    toprung.cupy.disable()
    products.forget()
    assert [vars(owner).get(name) for owner, name, _ in seams.SEAMS] == OWN
    assert not toprung.cupy.is_enabled()


def ran(call: Callable[[], Any]) -> int:
    """Count the products that a call runs on toprung's kernels."""
    before = toprung.cupy.report().taken
    call()
    return toprung.cupy.report().taken - before


# arrays of CuPy over the host's memory


def laid(array: np.ndarray[Any, Any]) -> Any:
    """Return a CuPy array over a NumPy array's memory, which must not be launched upon."""
    memory = cupy.cuda.memory.UnownedMemory(array.ctypes.data, max(array.nbytes, 1), array, 0)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.memory.MemoryPointer(memory, 0), strides=array.strides)


def read(array: Any) -> np.ndarray[Any, Any]:
    """Return the elements of such an array as a NumPy array over the same memory, which the first array keeps alive."""
    first = np.ctypeslib.as_array((ctypes.c_uint8 * array.dtype.itemsize).from_address(array.data.ptr)).view(array.dtype)
    return np.lib.stride_tricks.as_strided(first, array.shape, array.strides)


class OverHost(CuPy):
    """Adapter of such arrays, which says that they lie on the host."""

    def operand(self, thing: Any, name: str) -> Operand:
        strides = tuple(s // 4 for s in thing.strides)
        return Operand(self, thing, thing.shape, strides, Home(HOST), thing.data.ptr, host=read(thing))

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        return laid(np.full(shape, np.nan, np.float32, order="F" if fortran else "C"))

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        return laid(np.full(shape, np.nan, np.float32))

    def on_host(self, thing: Any) -> Any:
        return read(thing)

    def queue(self, thing: Any, home: Home) -> Any:
        return None


@pytest.fixture
def over_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have products of arrays over the host's memory computed by PoCL: no CUDA function may be called."""
    monkeypatch.setattr(products, "adapter", OverHost())
    monkeypatch.setattr(products, "current_device", lambda: 0)
    monkeypatch.setattr(products, "current_stream", lambda number: 0)


@pytest.fixture
def theirs() -> Iterator[list[str]]:
    """Names of CuPy's own functions that are reached, in the order of the calls; they return None."""
    reached: list[str] = []
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in seams.SEAMS]
    for owner, name, _ in before:
        setattr(owner, name, lambda *args, _name=name, **more: reached.append(_name))
    yield reached
    toprung.cupy.disable()
    for owner, name, there in before:
        if there is None:
            delattr(owner, name)
        else:
            setattr(owner, name, there)


PRODUCTS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "operator": (lambda a, b: a @ b, (9, 33), (33, 17)),
    "operator, batches": (lambda a, b: a @ b, (3, 9, 33), (3, 33, 17)),
    "operator, broadcast": (lambda a, b: a @ b, (2, 1, 9, 33), (3, 33, 17)),
    "operator, one matrix for all": (lambda a, b: a @ b, (5, 4), (3, 4, 6)),
    "operator, row": (lambda a, b: a @ b, (33,), (33, 17)),
    "operator, column": (lambda a, b: a @ b, (9, 33), (33,)),
    "matmul": (lambda a, b: cupy.matmul(a, b), (9, 33), (33, 17)),
    "matmul, dtype": (lambda a, b: cupy.matmul(a, b, dtype="float32"), (9, 33), (33, 17)),
    "matmul, order": (lambda a, b: cupy.matmul(a, b, order="C"), (9, 33), (33, 17)),
    "linalg.matmul": (lambda a, b: cupy.linalg.matmul(a, b), (9, 33), (33, 17)),
    "numpy.matmul": (lambda a, b: np.matmul(a, b), (9, 33), (33, 17)),
    "numpy.dot": (lambda a, b: np.dot(a, b), (9, 33), (33, 17)),
    "dot": (lambda a, b: cupy.dot(a, b), (9, 33), (33, 17)),
    "dot, batches": (lambda a, b: cupy.dot(a, b), (2, 9, 33), (3, 33, 17)),
    "dot, batches that join": (lambda a, b: cupy.dot(a, b.transpose(1, 0, 2)), (2, 9, 33), (33, 2, 17)),
    "dot, batch and column": (lambda a, b: cupy.dot(a, b), (2, 9, 33), (33,)),
    "dot, row and batch": (lambda a, b: cupy.dot(a, b), (33,), (2, 33, 5)),
    "method dot": (lambda a, b: a.dot(b), (9, 33), (33, 17)),
    "transposed": (lambda a, b: a.T @ b.T, (33, 9), (17, 33)),
    "every second": (lambda a, b: a[::2, ::3] @ b[::-1], (9, 33), (11, 17)),
    "tensordot": (lambda a, b: a_module(a).tensordot(a, b, 1), (9, 33), (33, 17)),
    "tensordot, row": (lambda a, b: a_module(a).tensordot(a, b, 1), (33,), (33, 17)),
    "tensordot, column": (lambda a, b: a_module(a).tensordot(a, b, 1), (9, 33), (33,)),
    "tensordot, two axes": (lambda a, b: a_module(a).tensordot(a, b, ((0, 2), (1, 0))), (3, 9, 5), (5, 3, 7)),
    "tensordot, last axes": (lambda a, b: a_module(a).tensordot(a, b, (-1, -1)), (4, 9, 5), (7, 5)),
    "inner": (lambda a, b: a_module(a).inner(a, b), (9, 33), (2, 17, 33)),
}


def a_module(array: Any) -> Any:
    return cupy if isinstance(array, cupy.ndarray) else np


def truth(call: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return what the same call gives of NumPy's float64 arrays."""
    if "cupy" in call.__code__.co_names:
        names = call.__code__.co_names
        b = b.transpose(1, 0, 2) if "transpose" in names else b
        call = np.dot if "dot" in names else np.matmul
    return call(a.astype(np.float64), b.astype(np.float64))


COPIED = ("dot, batches", "dot, row and batch", "tensordot, two axes")
"""Products of which CuPy copies an operand first, which takes a GPU."""


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name not in COPIED])
def test_every_seam_over_the_hosts_memory(name: str, over_host: None) -> None:
    call, first, second = PRODUCTS[name]
    a, b = drawn(*first), drawn(*second)
    x, y = laid(a), laid(b)
    with toprung.cupy.use(**EVERY):
        for _ in range(2):  # decided, and remembered
            found: list[Any] = []
            assert ran(lambda found=found: found.append(call(x, y))) == 1
            assert type(found[0]) is cupy.ndarray and found[0].shape == truth(call, a, b).shape
            np.testing.assert_allclose(read(found[0]), truth(call, a, b), rtol=1e-5, atol=1e-5)


def test_a_result_to_write_into(over_host: None, theirs: list[str]) -> None:
    a, b = drawn(9, 33), drawn(33, 17)
    with toprung.cupy.use(**EVERY):
        for call in (
            lambda out: cupy.matmul(laid(a), laid(b), out=out), lambda out: cupy.dot(laid(a), laid(b), out),
            lambda out: laid(a).dot(laid(b), out=out),
        ):  # fmt: skip
            result = np.full((9, 17), np.nan, np.float32)
            given = laid(result)
            assert ran(lambda call=call, given=given: call(given) is given or pytest.fail("another array")) == 1
            np.testing.assert_allclose(result, a.astype(float) @ b, rtol=1e-5, atol=1e-5)
        wide = np.full((9, 40), np.nan, np.float32)  # rows that lie apart
        assert ran(lambda: cupy.matmul(laid(a), laid(b), out=laid(wide)[:, 3:20])) == 1
        np.testing.assert_allclose(wide[:, 3:20], a.astype(float) @ b, rtol=1e-5, atol=1e-5)
        assert np.isnan(wide[:, :3]).all() and np.isnan(wide[:, 20:]).all()
    assert theirs == []


def test_products_of_one_shape_that_lie_otherwise(over_host: None) -> None:
    """Strides and alignment decide a product as the shape does."""

    def lying(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        wide = np.full((13, 25), np.nan, np.float32)
        wide[1:, 1:13] = array
        return [array, array.T, array[::-1], array[:, ::-1], wide[1:, 1:13]]

    with toprung.cupy.use(**EVERY):
        for a in lying(drawn(12, 12)):
            for b in lying(drawn(12, 12)):
                found: list[Any] = []
                assert ran(lambda a=a, b=b, found=found: found.append(laid(a) @ laid(b))) == 1
                np.testing.assert_allclose(read(found[0]), a.astype(float) @ b, rtol=1e-5, atol=1e-5)
                for result in lying(np.full((12, 12), np.nan, np.float32)):
                    assert ran(lambda a=a, b=b, result=result: cupy.matmul(laid(a), laid(b), out=laid(result))) == 1
                    np.testing.assert_allclose(result, a.astype(float) @ b, rtol=1e-5, atol=1e-5)


def test_overlap_goes_by_the_call_and_not_by_the_kind(over_host: None, theirs: list[str]) -> None:
    apart, together = laid(drawn(48, 16)), laid(drawn(48, 16))
    with toprung.cupy.use(**EVERY):
        for memory, expected in ((together, 0), (apart, 1), (together, 0), (apart, 1)):
            a, out = memory[:16], memory[32:] if memory is apart else memory[:16]
            assert ran(lambda a=a, memory=memory, out=out: cupy.matmul(a, memory[16:32], out=out)) == expected
    assert theirs == ["_try_fastcall_func"] * 2


@pytest.mark.parametrize("kind", ["float64", "float16", "int32", "complex64", "bool"])
def test_other_types_reach_cupys_own(kind: str, over_host: None, theirs: list[str]) -> None:
    a, b = laid(np.ones((9, 33), kind)), laid(np.ones((33, 17), kind))
    one, other = laid(drawn(9, 33)), laid(drawn(33, 17))
    with toprung.cupy.use(**EVERY):
        for x, y in ((a, b), (a, other), (one, b)):
            for call in (lambda: x @ y, lambda: cupy.matmul(x, y), lambda: x.dot(y), lambda: cupy.tensordot(x, y, 1)):  # noqa: B023
                assert ran(call) == 0
    assert theirs == ["__matmul__", "_try_fastcall_func", "dot", "tensordot_core"] * 3


def test_what_cupy_must_decide_reaches_cupys_own(over_host: None, theirs: list[str]) -> None:
    memory = drawn(16, 16)
    a, b, square = laid(drawn(9, 33)), laid(drawn(33, 17)), laid(memory)

    class Mine(cupy.ndarray):  # type: ignore[misc, name-defined]
        pass

    mine = laid(drawn(9, 33)).view(Mine)
    calls: list[Callable[[], Any]] = [
        lambda: a @ a, lambda: a @ 2, lambda: a @ laid(np.full((), 2, np.float32)), lambda: laid(drawn(0, 33)) @ b,
        lambda: mine @ b, lambda: laid(drawn(3, 2, 4)) @ laid(drawn(2, 4, 2)), lambda: a.dot(a), lambda: a.dot(2),
        lambda: laid(drawn(2, 3, 4)).dot(laid(drawn(2, 3, 4))), lambda: a.dot(b, laid(drawn(17, 9))),
        lambda: a.dot(b, laid(drawn(17, 9).T)), lambda: a.dot(b, laid(drawn(9, 17).astype("f8"))),
        lambda: cupy.matmul(a, b, out=laid(drawn(3, 9, 17))), lambda: cupy.matmul(a, b, out=laid(np.ones((9, 17)))),
        lambda: cupy.matmul(a, b, out=(laid(drawn(9, 17)),)), lambda: cupy.matmul(a, b, axes=[(0, 1), (0, 1), (0, 1)]),
        lambda: cupy.matmul(a, b, dtype="float64"), lambda: cupy.matmul(a, b, dtype="nonsense"),
        lambda: cupy.matmul(a, b, casting="no"), lambda: cupy.matmul(a, b, order="F"), lambda: cupy.matmul(a),
        lambda: cupy.matmul(square, square, out=square), lambda: cupy.matmul(square[1:, :8], square[:8], out=square[:15]),
        lambda: square[:8].dot(laid(drawn(16, 16)), square[8:]), lambda: cupy.vdot(a, a),
        lambda: cupy.inner(laid(drawn(9)), laid(drawn(9))), lambda: cupy.tensordot(laid(drawn(0, 5)), laid(drawn(5, 3)), 1),
        lambda: cupy.tensordot(laid(drawn(4, 0)), laid(drawn(0, 3)), 1),
    ]  # fmt: skip
    before = memory.copy()
    with toprung.cupy.use(**EVERY):
        for number, call in enumerate(calls):
            reached = len(theirs)
            taken = ran(call)
            expected = 1 if number == 23 else 0  # the control: a part of an operand's array that the operand does not reach
            assert (taken, len(theirs) - reached) == (expected, 1 - expected), number
    assert (memory[:8] == before[:8]).all() and not (memory[8:] == before[8:]).all()


def test_what_the_program_asks_for_is_honoured(over_host: None, theirs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = laid(drawn(9, 33)), laid(drawn(33, 17))
    linalg = cupy._core._routines_linalg
    with toprung.cupy.use(**EVERY):
        before = cupy._core.get_compute_type("f")
        try:
            cupy._core.set_compute_type("f", linalg.COMPUTE_TYPE_PEDANTIC)
            assert ran(lambda: a @ b) == 0
        finally:
            cupy._core.set_compute_type("f", before)
        assert ran(lambda: a @ b) == 1
        monkeypatch.setattr(products, "current_device", lambda: 1)
        assert ran(lambda: a @ b) == 0
    assert theirs == ["__matmul__"] * 2
    refused = toprung.cupy.report().refused
    assert sorted(refused.values()) == [1, 1] and any("CUPY_TF32" in reason for reason in refused)


def test_small_products_and_slower_ones_are_cupys(over_host: None, theirs: list[str]) -> None:
    a, b = laid(drawn(9, 33)), laid(drawn(33, 17))
    with toprung.cupy.use():
        assert ran(lambda: (a @ b, cupy.tensordot(a, b, 1), a.dot(b), cupy.matmul(a, b))) == 0
        assert toprung.cupy.report().small == 4 and toprung.cupy.report().rows == ()
    for least, taken in ((2 * 9 * 33 * 17, 1), (2 * 9 * 33 * 17 + 1, 0)):
        with toprung.cupy.use(own=True, min_flops=least):
            assert ran(lambda: a @ b) == taken
    with toprung.cupy.use(min_flops=0):
        assert ran(lambda: a @ b) == 0
        (row,) = (r for r in toprung.cupy.report().rows if not r.taken)
        assert (row.problem, row.layout, row.left) == ("9×33 · 33×17", "NN", 1) and "as fast" in row.why
    assert len(theirs) == 6


def test_one_operand_of_a_broadcast_batch_has_all_matrices(over_host: None) -> None:
    a, b = laid(drawn(4, 5)), laid(drawn(3, 5, 6))
    with toprung.cupy.use(own=True, min_flops=2 * 3 * 4 * 5 * 6):
        assert ran(lambda: a @ b) == 1


def test_the_report_says_what_ran(over_host: None) -> None:
    a, b = laid(drawn(9, 33)), laid(drawn(17, 33))
    toprung.cupy.enable(**EVERY)
    for _ in range(3):
        a @ b.T
    found = toprung.cupy.report()
    (row,) = found.rows
    assert (row.problem, row.layout, row.taken, row.left, row.why) == ("9×33 · 33×17", "NT", 3, 0, "") and row.kernel
    assert found.taken == 3 and found.to_json()["rows"][0]["kernel"] == row.kernel and row.problem in str(found)
    toprung.planning("estimate")  # what was selected is selected anew; the counts stay
    a @ b.T
    assert toprung.cupy.report().taken == 4
    toprung.cupy.enable(**EVERY)
    assert toprung.cupy.report().rows == () and "no float32 product of CuPy arrays has run" in str(toprung.cupy.report())
    assert max(map(len, str(found).splitlines())) <= 80


def test_what_fails_is_computed_by_cupy(over_host: None, theirs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = laid(drawn(9, 33)), laid(drawn(33, 17))

    def fails(*given: Any) -> Any:
        raise errors.OutOfDeviceMemory("a device", 4, 3)

    def breaks(*given: Any) -> Any:
        raise ZeroDivisionError("ours")

    with toprung.cupy.use(**EVERY):
        monkeypatch.setattr(products, "decided", breaks)
        with pytest.warns(RuntimeWarning, match="ours"):
            assert ran(lambda: a @ b) == 0
        products.forget()
        monkeypatch.setattr(products, "decided", fails)
        assert ran(lambda: (a @ b, a @ b)) == 0 and "OutOfDeviceMemory" in toprung.cupy.report().rows[0].why
    assert len(theirs) == 3


# the switch


def test_cupys_own_functions_are_back_after_disable() -> None:
    def there() -> list[Any]:
        return [vars(owner).get(name) for owner, name, _ in seams.SEAMS]

    before = there()
    assert before == OWN and before[:2] == [None, None]  # inherited
    toprung.cupy.enable()
    toprung.cupy.enable(own=True)  # again
    assert all(x is not y for x, y in zip(there(), before, strict=True)) and toprung.cupy.is_enabled()
    toprung.cupy.disable()
    toprung.cupy.disable()
    assert there() == before and not toprung.cupy.is_enabled()
    assert "__matmul__" not in vars(cupy.ndarray) and "dot" not in vars(cupy.ndarray)


def test_what_somebody_else_put_in_our_place_stays(over_host: None, theirs: list[str]) -> None:
    toprung.cupy.enable(**EVERY)
    ours = cupy.ndarray.__matmul__
    other = cupy.ndarray.__matmul__ = lambda self, b: ours(self, b)
    try:
        a, b = laid(drawn(9, 33)), laid(drawn(33, 17))
        assert ran(lambda: a @ b) == 1
        toprung.cupy.disable()
        assert vars(cupy.ndarray)["__matmul__"] is other and ran(lambda: a @ b) == 0 and theirs == ["__matmul__"]
    finally:
        cupy.ndarray.__matmul__ = ours


def test_blocks_nest_and_decorate(over_host: None, theirs: list[str]) -> None:
    a, b = laid(drawn(9, 33)), laid(drawn(33, 17))

    def count() -> int:
        return ran(lambda: a @ b)

    with toprung.cupy.use(**EVERY):
        assert count() == 1
        with toprung.cupy.exclude():
            assert not toprung.cupy.is_enabled() and count() == 0
            with toprung.cupy.use(**EVERY):
                assert count() == 1
        assert count() == 1
    assert count() == 0 and toprung.cupy.exclude()(count)() == 0 and toprung.cupy.use(**EVERY)(count)() == 1
    counts: list[int] = []
    with toprung.cupy.use(**EVERY):
        thread = threading.Thread(target=lambda: counts.append(count()))
        thread.start()
        thread.join()
    assert counts == [1]


@pytest.mark.parametrize(
    "given",
    [
        {"precision": "fp8"},
        {"precision": "tf32"},
        {"precision": "fp32x-strassen"},
        {"own": "yes"},
        {"min_flops": -1},
        {"min_flops": float("nan")},
        {"min_flops": True},
        {"min_flops": "many"},
        {"own": None},
        {"precision": len},
    ],
)
def test_options_that_there_are_not(given: dict[str, Any]) -> None:
    for call in (toprung.cupy.enable, toprung.cupy.use):
        with pytest.raises(errors.BadArgument, match=next(iter(given))):
            call(**given)
    assert not toprung.cupy.is_enabled()


# on a GPU


def on(array: np.ndarray[Any, Any]) -> Any:
    return cupy.asarray(array)


@gpu
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_seam_on_a_gpu(name: str) -> None:
    call, first, second = PRODUCTS[name]
    a, b = drawn(*first), drawn(*second)
    x, y = on(a), on(b)
    with toprung.cupy.use(**EVERY):
        found: list[Any] = []
        assert ran(lambda: found.append(call(x, y))) == 1
    assert type(found[0]) is cupy.ndarray and found[0].dtype == np.float32 and found[0].flags.c_contiguous
    wanted = truth(call, a, b)
    assert found[0].shape == wanted.shape == call(x, y).shape
    np.testing.assert_allclose(found[0].get(), wanted, rtol=1e-5, atol=1e-5)


@gpu
@pytest.mark.parametrize(
    "text, first, second",
    [
        ("ij,jk->ik", (65, 33), (33, 17)), ("bij,bkj->bik", (3, 9, 33), (3, 17, 33)), ("ij,kj", (9, 33), (17, 33)),
        ("abc,cd->dab", (3, 9, 33), (33, 17)),
    ],
)  # fmt: skip
def test_einsum_on_a_gpu(text: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = drawn(*first), drawn(*second)
    with toprung.cupy.use(**EVERY):
        found: list[Any] = []
        assert ran(lambda: found.append(cupy.einsum(text, on(a), on(b)))) == 1
    np.testing.assert_allclose(found[0].get(), np.einsum(text, a.astype(float), b.astype(float)), rtol=1e-5, atol=1e-5)


@gpu
def test_by_default_large_products_are_taken_on_a_gpu() -> None:
    a, b = drawn(2048, 2048), drawn(2048, 2048)
    oracle = a.astype(float) @ b
    x, y = on(a), on(b)
    toprung.cupy.enable()
    for call in (lambda: x @ y, lambda: x @ on(b.T.copy()).T, lambda: cupy.einsum("ij,jk", x, y), lambda: cupy.tensordot(x, y, 1)):
        made = call().get()
        assert np.linalg.norm(made - oracle) < 1e-5 * np.linalg.norm(oracle)
    print(toprung.cupy.report())
    rows = toprung.cupy.report().rows
    assert rows and all(row.taken or "as fast" in row.why or "times as long" in row.why for row in rows)


@gpu
@pytest.mark.parametrize("kind", ["float64", "float16", "int32", "complex64"])
def test_other_types_have_the_bits_of_cupys_own_on_a_gpu(kind: str) -> None:
    a, b = on(3 * drawn(65, 33)).astype(kind), on(3 * drawn(33, 17)).astype(kind)
    calls = (
        lambda: a @ b,
        lambda: cupy.matmul(a, b),
        lambda: a.dot(b),
        lambda: cupy.tensordot(a, b, 1),
        lambda: cupy.einsum("ij,jk", a, b),
    )
    plain = [call() for call in calls]
    with toprung.cupy.use(**EVERY):
        for call, wanted in zip(calls, plain, strict=True):
            made = call()
            assert made.dtype == wanted.dtype and bool((made == wanted).all())
        assert toprung.cupy.report().taken == 0


@gpu
def test_errors_are_cupys_own_on_a_gpu() -> None:
    a, b = on(drawn(9, 33)), on(drawn(33, 17))
    for call in (
        lambda: a @ a, lambda: cupy.matmul(a, a), lambda: a.dot(a), lambda: cupy.tensordot(a, a, 1), lambda: a @ 2,
        lambda: on(drawn(3, 2, 4)) @ on(drawn(2, 4, 2)), lambda: cupy.matmul(a, b, out=on(drawn(3, 3))),
        lambda: cupy.dot(a, b, on(drawn(9, 17).T.copy()).T), lambda: cupy.matmul(a, b, dtype="nonsense"), lambda: a @ None,
        lambda: cupy.einsum("ij,jk", a, a),
    ):  # fmt: skip
        caught = []
        for block in (toprung.cupy.exclude(), toprung.cupy.use(**EVERY)):
            with block, pytest.raises(Exception) as error:
                call()
            caught.append((error.type, str(error.value)))
        assert caught[0] == caught[1] and not issubclass(caught[0][0], errors.ToprungError)


@gpu
def test_results_overlaps_and_casts_on_a_gpu() -> None:
    a, b = drawn(64, 64), drawn(64, 64)
    oracle = a.astype(float) @ b
    with toprung.cupy.use(**EVERY):
        for made in (
            cupy.full((64, 64), cupy.nan, "f"),
            cupy.full((64, 80), cupy.nan, "f")[:, 5:69],
            cupy.full((64, 64), cupy.nan, "d"),
        ):
            assert cupy.matmul(on(a), on(b), out=made) is made
            np.testing.assert_allclose(made.get(), oracle, rtol=1e-4, atol=1e-4)
        x = on(a)
        cupy.matmul(x, on(b), out=x)  # CuPy copies where memory overlaps
        np.testing.assert_allclose(x.get(), oracle, rtol=1e-4, atol=1e-4)
        x = on(a)
        x @= on(b)
        np.testing.assert_allclose(x.get(), oracle, rtol=1e-4, atol=1e-4)


SPIN = r"""
extern "C" __global__ void spin(long long cycles, float *x, float value, int n) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value;
}
"""


@gpu
def test_the_current_stream_orders_products_on_a_gpu() -> None:
    """An operand is written late by the current stream; the product must wait for that, and the program must not."""
    spin = cupy.RawKernel(SPIN, "spin")
    stream = cupy.cuda.Stream(non_blocking=True)
    a, b = cupy.zeros((256, 256), "f"), cupy.ones((256, 256), "f")
    cupy.cuda.Device().synchronize()
    with toprung.cupy.use(**EVERY), stream:
        # twice at once, so that every kernel is compiled and the pool has memory, and twice after some 0.2 s
        for value, cycles in ((1.0, 0), (2.0, 0), (3.0, 400_000_000), (4.0, 400_000_000)):
            spin((1,), (256,), (np.int64(cycles), a, np.float32(value), np.int32(a.size)))
            made = a @ b
            doubled = 2 * made
            assert not (cycles and stream.done), "the call waited for the device"
            assert float(doubled.min()) == float(doubled.max()) == 2 * 256 * value
        assert toprung.cupy.report().taken == 4
    counts: list[int] = []

    def one(value: float) -> None:
        with cupy.cuda.Stream(non_blocking=True) as mine:
            x = cupy.full((256, 256), value, "f")
            for _ in range(20):
                made = x @ cupy.ones((256, 256), "f")
                counts.append(bool((made == 256 * value).all()))
            mine.synchronize()

    with toprung.cupy.use(**EVERY):
        threads = [threading.Thread(target=one, args=(float(v),)) for v in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [True] * 80


@gpu
def test_a_capture_is_refused_by_cupys_own_on_a_gpu_and_holds_a_plan() -> None:
    a, b, out = on(drawn(512, 512)), on(drawn(512, 512)), cupy.empty((512, 512), "f")
    oracle = a.get().astype(float) @ b.get()
    multiply = toprung.plan(a, b, out=out)
    cupy.cuda.Device().synchronize()
    with toprung.cupy.use(**EVERY), cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.matmul(a, b, out=out)
        multiply(a, b, out=out)
        stream.synchronize()
        stream.begin_capture()
        try:
            with pytest.raises(NotImplementedError, match="capture"):
                cupy.matmul(a, b, out=out)
            multiply(a, b, out=out)
        finally:
            graph = stream.end_capture()
        out.fill(cupy.nan)
        graph.launch()
        stream.synchronize()
        np.testing.assert_allclose(out.get(), oracle, rtol=1e-4, atol=1e-3)
        assert any("captured" in reason for reason in toprung.cupy.report().refused)


@gpu
def test_tf32_is_the_programs_own_on_a_gpu() -> None:
    a, b = on(drawn(512, 512)), on(drawn(512, 512))
    oracle = a.get().astype(float) @ b.get()
    linalg, before = cupy._core._routines_linalg, cupy._core.get_compute_type("f")
    with toprung.cupy.use(**EVERY):
        cupy._core.set_compute_type("f", linalg.COMPUTE_TYPE_TF32)
        try:
            assert ran(lambda: a @ b) == 0
            error = np.linalg.norm((a @ b).get() - oracle) / np.linalg.norm(oracle)
        finally:
            cupy._core.set_compute_type("f", before)
        assert ran(lambda: a @ b) == 1 and error > 1e-5 > np.linalg.norm((a @ b).get() - oracle) / np.linalg.norm(oracle)


@pytest.mark.skipif(GPUS < 2, reason="there are not two CUDA devices")
def test_another_device_on_a_gpu() -> None:
    with cupy.cuda.Device(1):
        a, b = cupy.ones((64, 64), "f"), cupy.ones((64, 64), "f")
        with toprung.cupy.use(**EVERY):
            assert ran(lambda: a @ b) == 1 and float((a @ b).sum()) == 64**3
    assert toprung.cupy.report().refused == {}
