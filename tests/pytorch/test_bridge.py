"""The override in C++: what is left to PyTorch enters no Python and is counted as before, in threads and in forked children too."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import toprung.torch
from toprung import errors
from toprung.backends import cxx
from toprung.blas import background, idle
from toprung.torch import __main__ as program
from toprung.torch import bridge, products, switch
from toprung.torch.overloads import OVERLOADS, form
from torch_device import DEVICE, EVERY, as_fast, native, overriding

LEFT: dict[str, Any] = {**EVERY, "own": False}
"""Settings with which products of this size are PyTorch's."""

PLACE = str(Path(toprung.__file__).parent)


@pytest.fixture(autouse=True)
def cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    overriding("Python", monkeypatch)
    toprung.torch.disable()  # takes away what is there in C++
    overriding("C++", monkeypatch)
    as_fast(monkeypatch)
    yield
    toprung.torch.disable()
    products.forget()


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device=DEVICE) - 0.5


A, B, C, X = drawn(16, 16), drawn(16, 16), drawn(16, 16), drawn(16)

CALLS: dict[str, Callable[[], Any]] = {
    "mm": lambda: torch.mm(A, B), "mm.out": lambda: torch.mm(A, B, out=C), "bmm": lambda: torch.bmm(A[None], B[None]),
    "bmm.out": lambda: torch.bmm(A[None], B[None], out=C[None]), "addmm": lambda: torch.addmm(X, A, B, beta=0.5, alpha=2),
    "addmm.out": lambda: torch.addmm(X, A, B, out=C), "addmm_": lambda: torch.zeros_like(A).addmm_(A, B, beta=0.5),
    "baddbmm": lambda: torch.baddbmm(C[None], A[None], B[None]),
    "baddbmm.out": lambda: torch.baddbmm(X, A[None], B[None], out=C[None]),
    "baddbmm_": lambda: torch.zeros_like(A[None]).baddbmm_(A[None], B[None]), "mv": lambda: torch.mv(A, X),
    "addmv.out": lambda: torch.addmv(X, A, X, out=torch.empty_like(X)), "addmv_": lambda: torch.zeros_like(X).addmv_(A, X),
    "_addmm_activation": lambda: torch.ops.aten._addmm_activation(X, A, B, use_gelu=True),
    "_addmm_activation.out": lambda: torch.ops.aten._addmm_activation.out(X, A, B, out=C),
    "linear and its gradients": lambda: torch.nn.functional.linear(A, torch.nn.Parameter(B), X).sum().backward(),
}  # fmt: skip
"""Products by all overloads that this device has."""


def frames(call: Callable[[], Any]) -> list[str]:
    """Return the functions of toprung's that a call enters."""
    seen: list[str] = []
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_filename + ":" + frame.f_code.co_name))
    try:
        call()
    finally:
        sys.setprofile(None)
    return [one for one in seen if one.startswith(PLACE)]


@pytest.mark.parametrize("name", CALLS)
def test_a_product_that_was_decided_enters_no_python(name: str) -> None:
    call = CALLS[name]
    theirs = call()
    toprung.torch.enable(**LEFT)
    assert frames(call), "Python decides the first time"
    toprung.torch.wait()
    call()  # takes over what was prepared
    before = toprung.torch.report()
    ours = call()
    assert frames(call) == []
    rows = toprung.torch.report().rows
    counted = sum(row.left + row.taken for row in rows)
    assert counted == 2 * (before.left + before.taken) and not any(row.taken for row in rows)
    assert ours is None or torch.equal(ours, theirs)


def test_kinds_that_come_once_enter_no_python_and_wait_prepares_those_that_came_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background.Background, "cost", 2.0)
    toprung.torch.enable(**{**LEFT, "reproducible": None})
    assert frames(CALLS["mm"]) == [] and frames(CALLS["bmm"]) == []
    assert frames(CALLS["mm"]) and frames(CALLS["mm"]) == []  # left until preparing pays
    assert toprung.torch.wait(600)
    assert frames(CALLS["mm"])
    assert toprung.torch.report().refused == {products.ONCE: 2}


def test_products_that_are_small_or_whose_program_asks_for_something_else_enter_no_python() -> None:
    call = CALLS["mm"]
    toprung.torch.enable(**{**EVERY, "min_flops": 2 * 16**3 + 1})
    assert frames(call) == [] and toprung.torch.report().small == 1
    toprung.torch.enable(**{**EVERY, "ops": ("bmm",)})
    assert frames(call) == []
    toprung.torch.enable(**{**EVERY, "reproducible": None})
    assert frames(lambda: torch.mm(A.double(), B.double())) == []
    call()
    toprung.torch.wait()
    setting = torch.backends.cuda.matmul if DEVICE == "cuda" else torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "tf32"
    try:
        call()
        assert frames(call) == []
    finally:
        setting.fp32_precision = before
    torch.use_deterministic_algorithms(True)
    try:
        call()
        assert frames(call) == []
    finally:
        torch.use_deterministic_algorithms(False)
    taken = toprung.torch.report().taken
    assert frames(call) and toprung.torch.report().taken == taken + 1
    assert sorted(toprung.torch.report().refused.values()) == [2, 2]
    with toprung.torch.exclude():
        assert frames(call) == []


def test_counts_are_those_of_the_override_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(language: str) -> Any:
        overriding(language, monkeypatch)
        toprung.torch.enable(**LEFT)
        draw = random.Random(0)
        for _ in range(300):
            CALLS[draw.choice(list(CALLS))]()
            if draw.random() < 0.1:
                with toprung.torch.use(**{**EVERY, "min_flops": 10**6}):
                    CALLS["mm"]()
                with toprung.torch.use(**EVERY):
                    CALLS["addmm"]()
        found = toprung.torch.report()
        toprung.torch.disable()
        return found.small, sorted((row.op, row.problem, row.taken, row.left, row.why) for row in found.rows)

    assert counted("C++") == counted("Python")


def test_other_settings_and_a_new_choice_make_verdicts_unknown() -> None:
    call = CALLS["mm"]
    toprung.torch.enable(**LEFT)
    call()
    call()
    with toprung.torch.use(**EVERY):
        assert frames(call) and toprung.torch.report().taken == 1
    assert frames(call) == []
    products.now.retire()  # as when the tuned store changes
    assert frames(call) and frames(call) and frames(call) == []
    assert [row.left for row in toprung.torch.report().rows if row.left] == [6]
    toprung.torch.enable(**LEFT)
    assert toprung.torch.report().left == 0 and frames(call)


def test_everything_that_decides_a_product_is_in_its_key() -> None:
    odd = torch.empty(16 * 16 + 1, device=DEVICE)[1:].view(16, 16)
    kinds: list[Callable[[], Any]] = [
        lambda: torch.mm(A, B), lambda: torch.mm(A.T, B), lambda: torch.mm(A, B.T), lambda: torch.mm(odd, B),
        lambda: torch.mm(A, odd), lambda: torch.mm(A[:8], B), lambda: torch.mm(A, B, out=C), lambda: torch.mm(A, B, out=C.T),
        lambda: torch.mm(A, B, out=odd), lambda: torch.addmm(X, A, B), lambda: torch.addmm(X, A, B, beta=0),
        lambda: torch.addmm(X, A, B, beta=0.5),
        lambda: torch.addmm(X[:, None], A, B), lambda: torch.addmm(X, A, B, out=C), lambda: torch.addmm(C, A, B, out=C),
        lambda: torch._addmm_activation(X, A, B), lambda: torch._addmm_activation(X, A, B, use_gelu=True),
    ]  # fmt: skip
    toprung.torch.enable(**LEFT)
    assert all(frames(call) for call in kinds)  # Python waits for the kernel and leaves the product
    assert all(frames(call) for call in kinds)  # and settles its kind
    assert [i for i, call in enumerate(kinds) if frames(call)] == []


def test_modules_are_counted_in_python() -> None:
    toprung.torch.enable(**LEFT, modules=True)
    net = torch.nn.Sequential(torch.nn.Linear(16, 16)).to(DEVICE)
    for _ in range(3):
        net(A)
    assert toprung.torch.report().rows[0].modules == {"Sequential.0": 3}


def test_threads_lose_no_count() -> None:
    sizes = range(8, 24)
    pairs = [(drawn(n, 20), drawn(20, n)) for n in sizes]
    toprung.torch.enable(**LEFT)
    for a, b in pairs * 2:
        torch.mm(a, b)
    oracle = [a.double() @ b.double() for a, b in pairs]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(400):
            at = (i + seed) % len(pairs)
            if not torch.allclose(torch.mm(*pairs[at]).double(), oracle[at], atol=1e-5):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        toprung.torch.report()
    for thread in threads:
        thread.join()
    assert not wrong and {row.left for row in toprung.torch.report().rows} == {2 + 8 * 400 // len(pairs)}


def test_threads_multiply_while_another_enables_and_disables() -> None:
    expected, stop, wrong = torch.mm(A, B), threading.Event(), list[int]()

    def work() -> None:
        while not stop.is_set():
            if not torch.allclose(torch.mm(A, B), expected, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(60):
        toprung.torch.enable(**(EVERY if i % 3 == 0 else LEFT))
        torch.mm(A, B)
        toprung.torch.report()
        toprung.torch.disable()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(DEVICE == "cuda", reason="CUDA is not used in a forked child")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_decides_anew_whatever_its_parents_threads_hold() -> None:
    toprung.torch.enable(**LEFT)
    call, stop = CALLS["mm"], threading.Event()
    call()
    threads = [threading.Thread(target=lambda: [call() for _ in iter(stop.is_set, True)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                right = toprung.torch.report().left == 0 and bool(frames(call))
                call()
                os._exit(0 if right and frames(call) == [] and toprung.torch.report().left == 3 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_many_products_hold_nothing() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    toprung.torch.enable(**LEFT)
    multiply, out = torch.mm, torch.empty(16, 16, device=DEVICE)
    for _ in range(10_000):
        multiply(A, B, out=out)
    before, uses = resident(), [sys.getrefcount(t) for t in (A, B, out)]
    for _ in range(100_000):
        multiply(A, B, out=out)
    assert resident() - before < 4e6  # 40 bytes for each
    assert uses == [sys.getrefcount(t) for t in (A, B, out)] and toprung.torch.report().left == 110_000


def test_disable_takes_every_override_of_python_away_and_keeps_those_in_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    def overridden() -> list[str]:
        return [name for name in names if "toprung" in torch._C._dispatch_dump(f"aten::{name}")]

    there = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in OVERLOADS if there(f"aten::{name}", DEVICE.upper())]
    toprung.torch.enable(**EVERY)
    assert set(overridden()) == set(names)
    toprung.torch.disable()
    assert set(overridden()) == set(names) and frames(CALLS["mm"]) == []
    overriding("Python", monkeypatch)
    toprung.torch.enable(**EVERY)
    assert set(overridden()) == set(names)
    toprung.torch.disable()
    assert overridden() == [] and frames(CALLS["mm"]) == []


def test_a_file_that_is_no_bridge_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "bridge.so"
    path.write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match="--build"):
        assert bridge.loaded(path) is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the wheel's libraries, empty; nothing can be compiled, and the bridge is looked for as in a user's process."""
    monkeypatch.undo()
    monkeypatch.setattr(cxx, "FOLDER", tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path / "cache"))
    bridge.library.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    bridge.library.cache_clear()


MAJOR, MINOR, *_ = torch.__version__.split(".")


def test_the_wheels_bridge_is_used_and_nothing_is_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"torch-{MAJOR}.{int(MINOR) + 1}.so").touch()
    assert bridge.shipped() is None and bridge.library() is None and bridge.missing()
    path = Path(shutil.copy(native()._name, folder / f"torch-{MAJOR}.{MINOR}.so"))
    bridge.library.cache_clear()
    assert bridge.build() == path and bridge.library()._name == str(path) and bridge.missing() == ""
    monkeypatch.setattr(torch, "__version__", f"{MAJOR}.{MINOR}.0.dev20260101+cpu")
    assert bridge.shipped() is None


def test_a_wheels_bridge_that_does_not_load_is_passed_over(folder: Path) -> None:
    (folder / f"torch-{MAJOR}.{MINOR}.so").write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match="--build"):
        assert bridge.library() is None and "did not load" in bridge.missing()
    with pytest.warns(RuntimeWarning), pytest.raises(errors.MissingExtra, match="no-such-compiler"):
        bridge.build()
    kept = bridge.kept()
    kept.parent.mkdir(parents=True)
    shutil.copy(native()._name, kept)
    bridge.library.cache_clear()
    with pytest.warns(RuntimeWarning):
        assert bridge.library()._name == str(kept)


def test_a_line_says_that_there_is_no_bridge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    overriding("Python", monkeypatch)
    monkeypatch.setattr(idle, "_told", set())
    monkeypatch.setattr(idle, "tell", lambda *_: "")  # as where there is a GPU on which products gain
    for _ in range(2):
        toprung.torch.enable()
    said = capsys.readouterr().err
    assert said == f"toprung: products that stay PyTorch's ({torch.__version__}) enter Python: {bridge.missing()}\n"
    monkeypatch.setattr(idle, "_told", set())
    overriding("C++", monkeypatch)
    toprung.torch.enable()
    assert capsys.readouterr().err == ""


def test_an_overload_of_another_signature_passes_python_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(switch, "form", lambda name: "addmm" if name == "mm" else form(name))
    monkeypatch.setattr(bridge, "refused", set())
    monkeypatch.setattr(idle, "_told", set())
    monkeypatch.setattr(idle, "tell", lambda *_: "")
    theirs = CALLS["mm"]()
    toprung.torch.enable()
    toprung.torch.enable(**LEFT)
    assert all(frames(CALLS["mm"]) for _ in range(4)) and torch.equal(CALLS["mm"](), theirs)
    assert [bool(frames(CALLS["bmm"])) for _ in range(4)][-1] is False
    why = "those of mm, whose signature is not that of the C++ binary"
    assert capsys.readouterr().err == f"toprung: products that stay PyTorch's ({torch.__version__}) enter Python: {why}\n"
    assert toprung.torch.report().overrides == f"C++; products left to PyTorch enter no Python but {why}"


@pytest.mark.parametrize(("compiler", "says"), [("no-such-compiler", "not installed"), ("false", "bridge.cpp does not build")])
def test_a_bridge_that_cannot_be_built(
    compiler: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(SystemExit) as end:
        program.main(["--build"])
    assert end.value.code == 2 and says in capsys.readouterr().err
