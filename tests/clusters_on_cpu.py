"""Kernels whose slices of K are the blocks of a cluster, by their own texts on a CPU, launched by their families themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
from conftest import require
from hopper_on_cpu import Folder
from toprung.gemm.desc import GemmDesc
from toprung.kernels import launch
from toprung.kernels.base import KernelFamily, TileConfig


def folder_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Return the folder, or skip where nothing can be built."""
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    monkeypatch.setattr(launch, "loaded", lambda session, record, tile, options: record.source_for(tile, options, session.device))
    return Folder(path)


def worst(
    folder: Folder, family: KernelFamily, config_for: Callable[[GemmDesc], TileConfig], sizes: tuple[int, int, int],
    trans: str = "NN", batch: int = 1, pad: int = 0, beta: float = 0.0, beta_zero: bool | None = None,
) -> float:  # fmt: skip
    """Return the largest error of a product in units of the bound; NaN counts as infinite. Nothing outside C may change."""
    M, N, K = sizes
    rng = np.random.default_rng(M + N + K)

    def stored(rows: int, cols: int, turned: bool) -> tuple[Any, Any]:
        rows, cols = (cols, rows) if turned else (rows, cols)
        whole = np.full(batch * rows * (cols + pad) + 64, np.nan, np.float32)
        first = -whole.ctypes.data % 16 // 4 + 16
        lies = whole[first : first + batch * rows * (cols + pad)].reshape(batch, rows, cols + pad)
        lies[:, :, :cols] = rng.standard_normal((batch, rows, cols), np.float32)
        return lies, lies[:, :, :cols].transpose(0, 2, 1) if turned else lies[:, :, :cols]

    turned = trans[0] == "T", trans[1] == "T"
    (a, op_a), (b, op_b), (c, old) = stored(M, K, turned[0]), stored(K, N, turned[1]), stored(M, N, False)
    before = old.astype(np.float64)
    if not beta:
        c[...] = np.nan
    lda, ldb, ldc = (x.shape[2] for x in (a, b, c))
    strides = {"stride_a": a[0].size, "stride_b": b[0].size, "stride_c": c[0].size} if batch > 1 else {}
    align = {"align_a": 4, "align_b": 4, "align_c": 4}
    desc = GemmDesc(
        M, N, K, batch, *turned, lda, ldb, ldc, **strides, **align, beta_zero=beta == 0 if beta_zero is None else beta_zero
    )
    run = family.compile(folder, desc, config_for(desc)).starter()  # type: ignore[arg-type]
    run(a.ctypes.data, 0, b.ctypes.data, 0, c.ctypes.data, 0, 1.5, beta)
    assert np.isnan(c[:, :, N:]).all(), "written outside"
    exact = 1.5 * op_a.astype(np.float64) @ op_b.astype(np.float64) + (beta * before if beta else 0)
    magnitude = 1.5 * np.abs(op_a).astype(np.float64) @ np.abs(op_b).astype(np.float64) + (abs(beta * before) if beta else 0)
    error = np.abs(c[:, :, :N] - exact) / (12 * 2.0**-24 * magnitude)
    return float(np.where(np.isnan(error), np.inf, error).max())
