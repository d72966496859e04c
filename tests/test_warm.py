"""Calls like an earlier one: found again for every array library, right bit for bit, never for operands that differ, and cheap."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
import toprung
from arrays import ENTRIES, KINDS, enter, hold
from toprung import errors, last_receipt
from toprung.blas import calls, routines
from toprung.device import Device
from toprung.dispatch import mixed
from toprung.dispatch.select import select
from toprung.execute import host

CALLS = 60
"""Most Python functions that a repeated product of NumPy arrays through OpenCL may enter, NumPy's and pyopencl's own among them."""

MODULES = 60
"""Most modules of toprung that ``import toprung`` may load."""

PACKAGE = str(Path(toprung.__file__).parent)

SELECTED = {
    ("h200-cuda", "auto"): (230, 245, 155), ("h200-cuda", "fp32"): (135, 230, 150), ("pocl", "fp32"): (115, 115, 115),
    ("h200-cuda", "halves"): (215, 220, 220),
}  # fmt: skip
"""Most toprung functions entered by a new selection, at M = 100, 1000, 3000, by device and precision.

``halves``: A is float16. Without cuBLAS up to 30 fewer are entered. At M = 1000 the store has neighbours."""

WAYS: dict[str, dict[str, Any]] = {"by default": {}, "own": {"own": True}}
"""The host's BLAS, and a CPU device on the host's own memory."""


@pytest.fixture(autouse=True, params=ENTRIES)
def afresh(device: Device, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """No call is remembered, and none afterwards."""
    monkeypatch.setattr("toprung.blas.product.best", lambda: device)
    enter(request.param, monkeypatch)
    yield
    calls.forget()


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def entered(call: Callable[[], Any]) -> int:
    """Return how many Python functions a call enters when it has been made before."""
    count = 0

    def note(frame: types.FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    def once() -> int:
        nonlocal count
        count = 0
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return count - 1  # the function given

    for _ in range(4):
        call()
    # what else is entered meanwhile (a callback of OpenCL's, the finalizer of an array that another test left) is not the call's
    return min(once() for _ in range(5))


def found_again(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if a call that is made again is decided without a look at its operands."""
    for _ in range(3):
        call()
    with monkeypatch.context() as patched:
        patched.setattr(routines, "arranged", lambda *_: pytest.fail("it was looked at again"))
        try:
            call()
        except pytest.fail.Exception:
            return False
    return True


# what it costs


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_repeated_call_enters_few_functions(way: str, into: bool) -> None:
    a, b, c = (values(i, 64, 64) for i in range(3))
    out = c if into else None
    again = entered(lambda: toprung.matmul(a, b, out, **WAYS[way]))
    plan = toprung.plan(a, b, out, **WAYS[way])
    assert entered(lambda: plan(a, b, out)) <= again <= (CALLS if way == "own" else CALLS // 2)


def of_ours(call: Callable[[], Any]) -> int:
    """Return how many functions of toprung's a call enters."""
    count = 0

    def note(frame: types.FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("name", "precision"), SELECTED)
def test_a_new_shape_is_selected_in_few_calls(name: str, precision: str) -> None:
    """The store's entries have been read for earlier shapes; the least of three meets no neighbour for the first time."""
    device = golden.devices()[name]

    def selecting(m: int) -> Callable[[], Any]:
        if precision == "halves":
            return functools.partial(mixed.select, device, golden.gemm(m, 1024, 1024, type_a="float16"), "auto")
        return functools.partial(select, device, golden.gemm(m, 1024, 1024), False, precision)

    for m in range(64, 4000, 400):
        selecting(m)()
    for m, most in zip((100, 1000, 3000), SELECTED[name, precision], strict=True):
        assert min(of_ours(selecting(m + i)) for i in (0, 4, 8)) <= most, m


def test_importing_toprung_loads_the_library_and_nothing_above_it() -> None:
    program = "import sys, toprung; print(*(m for m in sys.modules if m.split('.')[0] == 'toprung'))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    above = [m for m in loaded if m.split(".")[1:2] and m.split(".")[1] in ("lab", "tune", "report", "cli", "oracle")]
    assert above == [] and 20 < len(loaded) <= MODULES, loaded


# what it computes

SHAPES = [
    ((5, 7), (7, 3)), ((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,)), ((1, 1), (1, 1)), ((0, 3), (3, 4)), ((3, 0), (0, 4)),
    ((2, 5, 7), (7, 3)), ((2, 5, 7), (2, 7, 3)), ((1, 5, 7), (4, 7, 3)), ((3, 1, 5, 7), (2, 7, 3)), ((4, 5, 7), (7,)),
]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("way", WAYS)
def test_the_same_call_gives_the_same_bits_again(way: str, kind: str, device: Device) -> None:
    make, fetch = KINDS[kind]
    queue = toprung.backends.session_for(device).queue if kind == "pyopencl" else None
    for number, (one, other) in enumerate(SHAPES):
        for layout in ("contiguous", "fortran") if kind == "numpy" else ("contiguous",):
            a, b = (hold(values(number + i, *shape), layout) for i, shape in enumerate((one, other)))
            x, y = make(a, queue), make(b, queue)
            first = toprung.matmul(x, y, **WAYS[way])
            for _ in range(3):
                found = toprung.matmul(x, y, **WAYS[way])
                assert type(found) is type(first), (one, other)
                np.testing.assert_array_equal(fetch(found), fetch(first))
            assert np.shape(fetch(found)) == np.matmul(a, b).shape


@pytest.mark.parametrize("way", WAYS)
def test_other_operands_are_other_calls(way: str) -> None:
    """Each differs from one before in a single thing that decides the result."""
    check_other_operands(functools.partial(toprung.matmul, **WAYS[way]))


def check_other_operands(matmul: Callable[..., Any]) -> None:
    a, b, wide = values(1, 6, 6), values(2, 6, 6), values(3, 6, 12)
    pairs = [
        (a, b), (a, b[:, :3]), (a, b.T), (a.T, b), (a, wide[:, ::2]), (a, wide[:, 1::2]), (wide[:, ::2], b), (a[:4], b),
        (a[:, :5], b[:5]), (a[None], b), (a, b[None]), (a[::-1], b), (a, b[::-1]), (a[0], b), (a, b[:, 0]),
        (wide.reshape(-1)[1:37].reshape(6, 6), b), (a, wide.reshape(-1)[3:39].reshape(6, 6)),
    ]  # fmt: skip
    for _ in range(3):
        for x, y in pairs:
            np.testing.assert_allclose(matmul(x, y), x.astype(np.float64) @ y, rtol=1e-4, atol=1e-5)
            out = np.full(np.matmul(x, y).shape, np.nan, np.float32)
            for target in (out, out.T.copy().T):
                assert matmul(x, y, target) is target
                np.testing.assert_allclose(target, x.astype(np.float64) @ y, rtol=1e-4, atol=1e-5)


# what must be looked at again


@pytest.mark.parametrize("way", WAYS)
def test_outputs_that_may_not_be_written_are_refused_again(way: str) -> None:
    a, b, big = values(1, 8, 8), values(2, 8, 8), values(3, 3, 8, 8)
    matmul = functools.partial(toprung.matmul, **WAYS[way])
    for _ in range(3):
        matmul(big[0], big[1], big[2])
        matmul(a, b, np.empty((8, 8), np.float32))
    with pytest.raises(errors.Overlap):
        matmul(big[0], big[1], big[0])
    with pytest.raises(errors.Overlap):
        matmul(big[0], big[1], big.reshape(-1)[40:104].reshape(8, 8))
    locked = np.empty((8, 8), np.float32)
    locked.flags.writeable = False
    with pytest.raises(errors.BadShape, match="read-only"):
        matmul(a, b, locked)
    with pytest.raises(errors.BadArray):
        matmul(a, b, np.empty((8, 8), np.float64))
    with pytest.raises(errors.BadArray, match="a is >f4"):
        matmul(a.astype(">f4"), b)
    with pytest.raises(errors.BadArray):
        matmul(a, b.astype(np.float64))
    with pytest.raises(errors.BadArgument):
        matmul(a, b, precision=["fp32"])  # cannot be hashed


def test_a_limit_set_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = values(1, 30, 20), values(2, 20, 10)
    for _ in range(3):
        toprung.matmul(a, b, own=True)
    plan = toprung.plan(a, b, own=True)
    monkeypatch.setenv(host.LIMIT, "4096")
    for call in (lambda: toprung.matmul(a, b, own=True), lambda: plan(a, b)):
        for _ in range(3):
            np.testing.assert_allclose(call(), a @ b, rtol=1e-4)
            assert last_receipt().copies  # type: ignore[union-attr]
    monkeypatch.delenv(host.LIMIT)
    np.testing.assert_allclose(toprung.matmul(a, b, own=True), a @ b, rtol=1e-4)
    assert not last_receipt().copies  # type: ignore[union-attr]


def test_every_library_has_a_short_way(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = toprung.backends.session_for(device).queue
    for kind, (make, fetch) in KINDS.items():
        a, b = (make(values(i, 9, 9), queue if kind == "pyopencl" else None) for i in range(2))
        out = make(values(5, 9, 9), queue if kind == "pyopencl" else None)
        short = kind != "dlpack"  # the protocol tells nothing without a capsule
        assert found_again(lambda a=a, b=b: toprung.matmul(a, b, own=True), monkeypatch) == short, kind  # type: ignore[misc]
        assert found_again(lambda a=a, b=b, c=out: toprung.matmul(a, b, c, own=True), monkeypatch) == short  # type: ignore[misc]
        np.testing.assert_allclose(fetch(out), fetch(a) @ fetch(b), rtol=1e-4, atol=1e-5)


def test_arrays_that_are_copied_first_are_looked_at_each_time() -> None:
    """Elements that are not aligned to 4 bytes: the copy of one call is not the other's operand."""
    raw = np.zeros(4 * 36 + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(6, 6)
    b = values(2, 6, 6)
    for seed in range(4):
        odd[...] = values(seed, 6, 6)
        np.testing.assert_allclose(toprung.matmul(odd, b, own=True), odd @ b, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(toprung.matmul(b, odd), b @ odd, rtol=1e-4, atol=1e-6)


def test_the_receipt_is_the_same_and_made_when_asked_for() -> None:
    a, b = values(1, 12, 8), values(2, 8, 4)
    toprung.matmul(a, b, own=True)
    first = last_receipt()
    for _ in range(3):
        toprung.matmul(a, b, own=True)
    again = last_receipt()
    assert first == again and again is last_receipt() and again is not None and again.own
    toprung.matmul(a, b)
    assert last_receipt() != first and first == toprung.plan(a, b, own=True).receipt


def test_threads_start_the_same_call() -> None:
    a, b = values(1, 40, 30), values(2, 30, 20)
    wrong: list[str] = []

    def work(seed: int) -> None:
        mine = values(seed, 40, 30)
        for _ in range(20):
            if not np.allclose(toprung.matmul(mine, b, own=True), mine @ b, rtol=1e-4, atol=1e-5):
                wrong.append("matmul")

    toprung.matmul(a, b, own=True)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_tensor_that_would_lose_its_gradient_is_never_short() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.ones(4, 4), torch.ones(4, 4)
    with torch.no_grad():
        a.requires_grad_()
        for _ in range(3):
            toprung.matmul(a, b)
    found = toprung.matmul(a, b)
    found.sum().backward()
    assert torch.equal(a.grad, b.sum(1).expand(4, 4))


def test_a_tensor_whose_sign_is_pending_is_never_short() -> None:
    torch = pytest.importorskip("torch")
    b, pair = torch.ones(4, 4), torch.complex(*torch.rand(2, 4, 4))
    plain, turned = pair.imag, pair.conj().imag
    assert turned.is_neg() and (plain.stride(), plain.data_ptr()) == (turned.stride(), turned.data_ptr())
    for more in WAYS.values():
        for x, sign in ((plain, 1), (turned, -1)) * 2:  # the first is remembered, and differs in nothing else
            torch.testing.assert_close(toprung.matmul(x, b, **more), sign * (plain @ b))
            torch.testing.assert_close(toprung.matmul(b, x, **more), sign * (b @ plain))
        with pytest.raises(errors.StalePlan):
            toprung.plan(plain, b, **more)(turned, b)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_plan_refuses_other_operands_and_takes_less_aligned_ones(kind: str, device: Device) -> None:
    make, fetch = KINDS[kind]
    queue = toprung.backends.session_for(device).queue if kind == "pyopencl" else None
    plan = toprung.plan(make(values(1, 8, 8), queue), make(values(2, 8, 8), queue), own=True)
    a, b = values(3, 8, 8), values(4, 8, 8)
    if kind != "pyopencl":
        a = hold(a, "shifted")
    for _ in range(3):
        np.testing.assert_allclose(fetch(plan(make(a, queue), make(b, queue))), a @ b, rtol=1e-4, atol=1e-5)
        for other in (values(5, 9, 8), values(5, 8), hold(b, "fortran")):
            with pytest.raises(errors.StalePlan):
                plan(make(other, queue), make(b, queue))
    with pytest.raises((errors.StalePlan, errors.BadArray)):
        plan([[1.0] * 8] * 8, make(b, queue))
    with pytest.raises((errors.StalePlan, errors.BadArray)):
        plan(make(a, queue), b.astype(np.float64))
