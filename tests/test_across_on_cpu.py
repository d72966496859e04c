"""The splitting pass that streams an operand whose K runs across memory leaves what the other one leaves, bit by bit, on a CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
from conftest import require
from hopper_on_cpu import Launch
from toprung.backends.base import Source
from toprung.kernels.hopper_fp32x.sizes import depth_of, width
from toprung.kernels.hopper_fp32x.sources import SPLIT_THREADS, Splitting, across_source, split_source


class Folder(hopper_on_cpu.Folder):
    """Folder in which both passes are built for the CPU."""

    plant: tuple[str, str] | None = None

    def translated(self, source: Source) -> tuple[str, int]:
        if source.kernel == "split":
            return hopper_on_cpu.translated(source)
        text = source.text
        if self.plant:
            assert self.plant[0] in text
            text = text.replace(*self.plant)
        text = text[: text.index("extern ")] + text[text.index('#line 1 "across.cu"') :]  # without split.cu's kernel
        shim = Path(__file__).with_name("hopper_across_on_cpu.h")
        gone = ("copies_commit", "put_at")
        text = text.replace("template <int LEFT> inline void copies_wait_but()", "template <int L> void unused()")
        return hopper_on_cpu.translated(dataclasses.replace(source, text=text), shim, "epilogue.cuh", gone)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return Folder(tmp_path_factory.mktemp("across"))


def check(folder: Any, rows: int, K: int, slices: int, matrices: int, ld: int, cluster: int, workers: int, wild: bool) -> None:
    """Split matrices, each K×rows with ``ld`` from one of K to the next, by both passes."""
    rng = np.random.default_rng(rows + K)
    x = rng.uniform(-1, 1, (matrices, K, ld)).astype(np.float32)
    x[:, :, rows:] = np.nan  # not theirs
    if wild:
        x[0, 3, 1], x[-1, 5, 2], x[0, :, 4], x[0, K - 1, rows - 1] = np.inf, np.nan, 0, 1e-30
        x[-1] *= np.exp2(rng.integers(-60, 60, (1, ld))).astype(np.float32)
    memory = np.zeros(x.size + 16, np.float32)
    base = memory[-memory.ctypes.data % 16 // 4 :][: x.size]
    base[:] = x.ravel()
    depth, count = depth_of(K, slices), rows * matrices * slices
    found = []
    for streamed in (False, True):
        terms, info = np.full((count + 1, width(depth)), 0xA5A5, np.uint16), np.full((count + 1, 2), 0xA5A5, np.int32)
        address, i, long = np.uint64, np.int32, np.int64
        if streamed:
            launch = Launch(
                folder, across_source(cluster, 2), workers * cluster, SPLIT_THREADS, "Pf",
                (address(terms.ctypes.data), address(info.ctypes.data), i(K), i(depth), i(slices), long(ld), long(K * ld), i(rows),
                 i(matrices * slices)), True,
            )  # fmt: skip
            launch(1, base.ctypes.data, 1.0)
        else:
            walk = Splitting.of(rows, matrices * slices, depth, True, 4)
            launch = Launch(
                folder, split_source(), walk.blocks(1), SPLIT_THREADS, "PPf",
                (address(0), address(0), address(terms.ctypes.data), address(info.ctypes.data), i(K), i(depth), i(slices), i(0),
                 long(1), long(0), i(1), i(0), i(0), long(ld), long(K * ld), i(rows), i(matrices * slices), i(0)), True,
            )  # fmt: skip
            launch(1, 0, base.ctypes.data, 1.0)
        assert (terms[count] == 0xA5A5).all() and (info[count] == 0xA5A5).all(), "written outside"
        found.append((terms, info))
    (terms, info), (streamed_terms, streamed_info) = found
    assert np.array_equal(info, streamed_info) and np.array_equal(terms, streamed_terms)


def test_both_passes_leave_the_same(folder: Folder) -> None:
    check(folder, 70, 200, 1, 2, 72, 1, 2, True)


@pytest.mark.slow
def test_strides_slices_and_clusters(folder: Folder) -> None:
    check(folder, 37, 77, 1, 3, 39, 1, 3, False)  # rows that begin anywhere
    check(folder, 100, 500, 3, 1, 100, 1, 2, True)
    check(folder, 130, 1000, 1, 1, 132, 2, 2, True)
    check(folder, 33, 900, 1, 2, 33, 2, 1, True)


@pytest.mark.slow
@pytest.mark.parametrize("good, bad", [
    ("info[row] = known(largest, all, behind)", "info[row] = known(most, all, behind)"),
    ("s.behind = whole - limit", "s.behind = 0"), ("k < s.left && valid", "valid"), ("16 * (lane % 8 ^ r % 8)", "16 * (lane % 8)"),
    ("n + STAGES * workers < total) fetch(o.strip(n + STAGES * workers, k0)", "n + STAGES * workers < total) fetch(o.strip(n, k0)"),
], ids=lambda text: text[:20])  # fmt: skip
def test_a_planted_bug_is_found(folder: Folder, monkeypatch: pytest.MonkeyPatch, good: str, bad: str) -> None:
    monkeypatch.setattr(folder, "plant", (good, bad))
    with pytest.raises(AssertionError):
        check(folder, 70, 200, 1, 2, 72, 1, 1, True)
        check(folder, 37, 77, 1, 3, 39, 1, 3, True)
