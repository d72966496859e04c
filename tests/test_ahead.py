"""Sources compiled ahead of a measurement are those that a product's launches ask for, however its operands lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import golden
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.dispatch.selection import Candidate
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import KernelFamily, candidates
from toprung.kernels.build import is_kept, keep, sources_of
from toprung.kernels.hopper_fp32x.family import INFLIGHT, PRESPLIT
from toprung.kernels.registry import families
from toprung.tune import compiler


class Compiling(golden.Recorder):
    """A session that notes what is compiled."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.asked: list[Source] = []

    def fingerprint(self) -> str:
        return ""

    def compile(self, source: Source) -> bytes:
        self.asked.append(source)
        return super().compile(source)


LAYOUTS = [(a, b) for a in (False, True) for b in (False, True)]


def desc_of(a: bool, b: bool, n: int = 96, **more: Any) -> GemmDesc:
    M, K = 160, 544
    return GemmDesc(
        M, n, K, trans_a=a, trans_b=b, lda=M if a else K, ldb=K if b else n, ldc=n, align_a=4, align_b=4, align_c=4, **more
    )  # fmt: skip


H200 = golden.devices()["h200-cuda"]


@pytest.mark.parametrize("one", [f for f in families() if f.memory == "device" and f.name != "cublas_half"], ids=lambda f: f.name)
def test_what_a_launch_compiles_is_known_beforehand(one: KernelFamily) -> None:
    for desc in (desc_of(*layout, n, beta_zero=zero) for layout in LAYOUTS for n in (16, 96, 97, 1024) for zero in (True, False)):
        for config in () if one.supports(H200, desc) else candidates(one, H200, desc)[:3]:
            session: Any = Compiling(H200)
            one.compile(session, desc, config)
            assert session.asked == sources_of(one, H200, desc, config), config
            assert bool(session.asked) == one.own


def test_b_that_the_product_splits_itself_has_no_pass() -> None:
    desc = golden.gemm(4096, 256, 7168, "NT")
    assert [s.kernel for s in sources_of(PRESPLIT, H200, desc, candidates(PRESPLIT, H200, desc)[0])] == ["inflight"]
    across = golden.gemm(4096, 256, 7168)
    assert [s.kernel for s in sources_of(PRESPLIT, H200, across, candidates(PRESPLIT, H200, across)[0])] == ["inflight", "split"]


def test_each_layout_has_a_source_of_its_own() -> None:
    made = [sources_of(INFLIGHT, H200, desc_of(*layout), INFLIGHT.config)[0].defines for layout in LAYOUTS]
    assert len({str(sorted(one.items())) for one in made}) == 4


def test_what_is_in_the_cache_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path))
    compiled: list[str] = []
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, arch: compiled.append(source.text) or pytest.fail("compiled"))
    source = Source("a", "kernel of a", "a", {}, "cuda")
    assert not is_kept(source, "here")
    keep(source, "here", b"binary")
    assert is_kept(source, "here") and not is_kept(source, "there")
    assert compiler.compile_all([source], "sm_90", "here") == "" and not compiled


def test_a_family_that_asks_the_device_while_it_compiles_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    desc = golden.gemm(4096, 256, 7168)
    asking = Candidate(PRESPLIT, candidates(PRESPLIT, H200, desc)[0])
    monkeypatch.setattr(type(PRESPLIT), "compile", lambda self, session, *more: session.workspace(session.queue, 1 << 20))
    pool = compiler.Compiler(H200, 1)
    try:
        assert pool.ahead(asking, desc, "here") is None
    finally:
        pool.close()
