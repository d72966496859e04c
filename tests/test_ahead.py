"""Sources compiled ahead of a measurement are those that a product's launches ask for, however its operands lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from test_fused_epilogue import WAYS, of_fp32x, of_sgemm
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.gemm.desc import GemmDesc
from toprung.kernels.build import is_kept, keep
from toprung.tune import compiler

LAYOUTS = [(a, b) for a in (False, True) for b in (False, True)]


def desc_of(a: bool, b: bool, n: int = 96, **more: Any) -> GemmDesc:
    M, K = 160, 544
    return GemmDesc(
        M, n, K, trans_a=a, trans_b=b, lda=M if a else K, ldb=K if b else n, ldc=n, align_a=4, align_b=4, align_c=4, **more
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """The sources that launches ask kernels of; nothing is compiled."""
    found: list[Source] = []
    for module in (of_fp32x, of_sgemm):
        monkeypatch.setattr(module, "kernel_of", lambda session, source: found.append(source) or source)
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("columns", [96, 97])
def test_launches_ask_for_what_was_compiled_ahead(
    asked: list[Source], tmp_path: Path, way: str, layout: tuple[bool, bool], columns: int
) -> None:
    family, config, folder_of = WAYS[way]
    folder: Any = folder_of(tmp_path, units=2)
    desc = desc_of(*layout, columns)
    family.compile(folder, desc, config)
    assert asked and asked == family.sources(folder.device, desc, config)


def test_what_lies_otherwise_is_another_source(asked: list[Source], tmp_path: Path) -> None:
    family, config, folder_of = WAYS["in flight"]
    device = folder_of(tmp_path, units=2).device
    made = [family.sources(device, desc_of(*layout), config)[0].defines for layout in LAYOUTS]
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
