"""cuBLAS on two halves: who is asked about which types, what reaches the library, and when it is selected."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import golden
from toprung.backends import cublas
from toprung.backends.base import Session
from toprung.backends.launcher import BoundLibrary
from toprung.device import Device
from toprung.dispatch import mixed, ranking
from toprung.dispatch.selection import Selection
from toprung.execute.executor import Executor
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.layout import Layout
from toprung.kernels.base import KernelConfig, KernelFamily, Launches, NoConfig
from toprung.kernels.cublas_half import family as half
from toprung.kernels.registry import families

H200 = golden.devices()["h200-cuda"]
LARGE = GemmDesc(
    4096, 4096, 4096, trans_b=True, align_a=4, align_b=4, align_c=4, type_a="bfloat16", type_b="bfloat16"
)  # fmt: skip


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas, "library", lambda: "installed")


class Doubled(KernelFamily):
    """A family for halves alone that is asked too much if it is asked about float32."""

    name = "doubled"
    precision = "fp32"
    own = False
    operand_dtypes = frozenset({"float16"})

    def supports(self, device: Device, desc: Desc) -> str:
        assert isinstance(desc, GemmDesc) and (desc.type_a, desc.type_b) == ("float16", "float16")
        return ""

    def cost(self, device: Device, desc: Desc, config: KernelConfig) -> float:
        return 1e-9

    def compile(self, session: Session, desc: Desc, config: KernelConfig) -> Launches:
        raise NotImplementedError


def test_a_family_is_asked_only_about_types_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ranking, mixed):
        monkeypatch.setattr(module, "families", lambda: (*families(), Doubled()))
    plain = replace(LARGE, type_a="float32", type_b="float32")
    assert not any("float32" not in f.operand_dtypes for p in ("fp32", "fp32x") for f in ranking.members(p))
    ranking.ranked(H200, plain, own=None)
    mixed.select(H200, LARGE, "auto")
    found = mixed.select(H200, replace(LARGE, type_a="float16", type_b="float16"), "auto")
    assert isinstance(found, Selection) and found.family.name == "doubled"


def test_only_kernels_of_ours_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "families", lambda: (*families(), Doubled()))
    desc = replace(LARGE, type_a="float16", type_b="float16")
    names = [getattr(mixed.select(H200, desc, "auto", own), "family", None) for own in (False, True)]
    assert [one.name for one in names if one] == ["doubled", "hopper_inflight"]


def test_the_faster_by_the_cost_model_is_selected() -> None:
    config = NoConfig()
    found = mixed.select(H200, LARGE, "auto")
    assert isinstance(found, Selection) and found.family is half.FAMILY
    waiting = half.MODEL.start + half.MODEL.each * (LARGE.M // half.MODEL.tile) * (LARGE.N // half.MODEL.tile) / H200.compute_units
    assert half.FAMILY.cost(H200, LARGE, config) == pytest.approx(waiting + LARGE.flops / half.MODEL.rates["16"])
    small = replace(LARGE, M=256, N=256, K=128, lda=0, ldb=0, ldc=0)
    few = mixed.select(H200, small, "auto")
    assert isinstance(few, Selection) and few.family.name == "hopper_inflight"  # a launch of ours costs the host less
    for precision, own in (("fp32", False), ("fp32x", True), ("auto", True)):
        asked = mixed.select(H200, LARGE, precision, own)
        assert isinstance(asked, str) or asked.family is not half.FAMILY
    assert "as " in str(mixed.select(replace(H200, arch="sm_80"), replace(LARGE, K=half.DEEPEST + 2, lda=0, ldb=0), "auto"))


def test_rows_that_begin_anywhere_take_longer() -> None:
    def seconds(desc: GemmDesc) -> float:
        return half.FAMILY.cost(H200, desc, NoConfig())

    aligned, eight, odd = (replace(LARGE, lda=lda) for lda in (4096, 4100, 4097))
    assert seconds(aligned) < 0.4 * seconds(eight) < 0.4 * seconds(odd)
    assert seconds(replace(aligned, align_a=1)) == seconds(odd)  # wherever the first element lies
    assert seconds(replace(aligned, ldc=4097)) == seconds(odd)  # and the result's rows
    few = replace(odd, M=512, N=512, ldc=0)
    assert seconds(few) / few.flops > 1.5 * seconds(odd) / odd.flops
    # a record of an H100 has 800 µs for 3615 cubed with odd rows, and 82 for 2004 cubed with rows of 4008 bytes
    assert 600e-6 < seconds(GemmDesc(3615, 3615, 3615, type_a="float16", type_b="float16")) < 1000e-6
    two = GemmDesc(2004, 2004, 2004, align_a=4, align_b=4, type_a="bfloat16", type_b="bfloat16")
    assert 65e-6 < seconds(two) < 105e-6


def test_times_that_an_h100_has_of_results_with_rows_that_begin_anywhere_and_of_small_batches() -> None:
    # tune-check-seed271.json, in the history: 55 and 277 µs
    odd = GemmDesc(448, 795, 4416, trans_b=True, ldc=799, align_a=4, align_b=4, type_a="bfloat16", type_b="bfloat16")
    assert 40e-6 < half.FAMILY.cost(H200, odd, NoConfig()) < 75e-6
    strides = {"stride_a": 12 * 147, "stride_b": 272 * 147, "stride_c": 12 * 272}
    small = GemmDesc(12, 272, 144, 3324, trans_b=True, lda=147, ldb=147, **strides, type_a="float16", type_b="float16")
    assert 140e-6 < half.FAMILY.cost(H200, small, NoConfig()) < 350e-6


def test_deeper_sums_are_not_left_to_tensor_cores() -> None:
    deep = replace(LARGE, K=half.DEEPEST, lda=0, ldb=0)
    assert not half.FAMILY.supports(H200, deep)
    assert "8,192" in half.FAMILY.supports(H200, replace(deep, K=half.DEEPEST + 1, lda=0, ldb=0))
    found = mixed.select(H200, replace(deep, K=2 * half.DEEPEST, lda=0, ldb=0), "auto")
    assert isinstance(found, Selection) and found.family.name == "hopper_inflight"


@pytest.mark.parametrize(
    ("types", "taken"),
    [("bb", True), ("hh", True), ("hb", False), ("bh", False), ("fb", False), ("hf", False), ("ff", False)],
)
def test_two_halves_of_one_type(types: str, taken: bool) -> None:
    names = {"b": "bfloat16", "h": "float16", "f": "float32"}
    desc = replace(LARGE, type_a=names[types[0]], type_b=names[types[1]])
    assert (half.FAMILY.supports(H200, desc) == "") is taken
    assert half.FAMILY.supports(golden.devices()["pocl"], desc)
    assert half.FAMILY.supports(H200, replace(desc, K=0, lda=0, ldb=0))


class Library:
    """Calls of cuBLAS, kept; numbers that are passed by reference are read at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> int:
            self.calls.append((name, [x._obj.value if type(x).__name__ == "CArgObject" else x for x in given]))
            return 0

        return call


class FakeSession:
    """A session of CUDA's, as far as ``gemm_ex`` asks it."""

    _context, queue = 7, 5

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("kind", "number", "size"), [("float32", 0, 4), ("float16", 2, 2), ("bfloat16", 14, 2)])
def test_what_reaches_the_library(monkeypatch: pytest.MonkeyPatch, kind: str, number: int, size: int, batch: int) -> None:
    """Types and addresses: offsets are elements of each operand's own size, and B comes first."""
    library = Library()
    monkeypatch.setattr(cublas, "library", lambda: library)
    monkeypatch.setattr(cublas, "_handles", {(7, 5): ctypes.c_void_p(1)})
    strides = {"stride_a": 1000, "stride_b": 0, "stride_c": 800} if batch > 1 else {}
    desc = GemmDesc(20, 30, 40, batch, True, False, 24, 33, 36, type_a=kind, type_b=kind, **strides)
    run = cublas.gemm_ex(FakeSession(), desc, cublas.COMPUTE_32F)  # type: ignore[arg-type]
    run(1000, 8, 2000, 6, 3000, 5, 0.5, 2.0)
    ((name, given),) = library.calls
    assert name == ("cublasGemmEx" if batch == 1 else "cublasGemmStridedBatchedEx")
    assert given[1:7] == [0, 1, 30, 20, 40, 0.5]
    b, a, c = [2000 + size * 6, number, 33], [1000 + size * 8, number, 24], [3000 + 20, 0, 36]
    steps = [[0], [1000], [800]] if batch > 1 else [[], [], []]
    assert given[7:] == [
        *b, *steps[0], *a, *steps[1], 2.0, *c, *steps[2], *([batch] if batch > 1 else []), cublas.COMPUTE_32F, -1
    ]  # fmt: skip


def test_the_executable_is_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow layouts to the call, with a transposed A."""
    library = Library()
    monkeypatch.setattr(cublas, "_handles", {(7, 5): ctypes.c_void_p(1)})
    with golden.recording():
        monkeypatch.setattr(cublas, "library", lambda: library)
        session: Any = golden.Recorder(H200)
        session._context, session.current = 7, FakeSession().current
        a, b = Layout((4096, 2048), (1, 4096), 4, "float16"), Layout((2048, 1024), (1024, 1), 4, "float16")
        found = Executor(session).mixed(a, b, Layout((4096, 1024), (1024, 1), 4), 1.0, 0.0, "auto")
        assert not isinstance(found, str) and not found.own
        (launch,) = found.plan.launches
        called = BoundLibrary(launch)
        called.fill([1 << 20, 1 << 24, 1 << 28], (1.0, 0.0))
        called.start(session, 5)
    ((name, given),) = library.calls
    assert (name, given[1:6]) == ("cublasGemmEx", [0, 1, 1024, 4096, 2048])
    assert given[7:10] == [1 << 24, cublas.R_16F, 1024] and given[10:13] == [1 << 20, cublas.R_16F, 4096]
    assert found.plan.sizes == (2, 2)
