"""Tests that need a GPU: cuBLAS on two halves, taken for every product that it supports, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import toprung
from toprung.blas import calls
from toprung.execute import executor
from toprung.kernels.cublas_half.family import DEEPEST, CuBLASHalf
from torch_device import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="there is no GPU")

KINDS = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def preferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Selected wherever it is supported, and nothing that was decided so is left."""
    monkeypatch.setattr(CuBLASHalf, "cost", lambda self, device, desc, config: 1e-9)
    calls.forget()
    executor.forget()
    yield
    calls.forget()
    executor.forget()


def drawn(*shape: int, dtype: Any, signed: bool = True, seed: int = 0) -> torch.Tensor:
    made = torch.rand(shape, generator=torch.Generator(DEVICE).manual_seed(sum(shape) + seed), device=DEVICE)
    return (made.mul(2).sub(1) if signed else made).to(dtype)


def held(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor, signed: bool = True) -> None:
    """Assert the promise of fp32: 16 units of Σ|a||b| with random signs, and K + 2 without."""
    x, y = a.double(), b.double()
    units = min(16.0, x.shape[-1] + 2.0) if signed else x.shape[-1] + 2.0
    assert found.dtype == torch.float32
    assert bool(((found.double() - x @ y).abs() <= units * 2.0**-24 * (x.abs() @ y.abs())).all())


def ran() -> str:
    receipt = toprung.last_receipt()
    return "" if receipt is None else " ".join(receipt.kernels)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 64, 64), (33, 17, 66), (130, 258, 1030), (512, 512, 4096), (64, 64, 65536)], ids=str)
def test_every_layout_into_nan(size: tuple[int, int, int], dtype: Any) -> None:
    m, n, k = size
    for turned_a in (False, True):
        for turned_b in (False, True):
            a = drawn(k, m, dtype=dtype).T if turned_a else drawn(m, k, dtype=dtype)
            # of another seed: sums of a matrix times its own transpose are of one sign on the diagonal
            b = drawn(n, k, dtype=dtype, seed=1).T if turned_b else drawn(k, n, dtype=dtype, seed=1)
            guarded = torch.full((m + 2, n), torch.nan, device=DEVICE)
            toprung.matmul(a, b, out=guarded[1:-1])
            held(guarded[1:-1], a, b)
            assert guarded[0].isnan().all() and guarded[-1].isnan().all()
            if m > 1 and min(m, n, k) % 2 == 0:
                assert ("cublas_half" in ran()) is (k <= DEEPEST)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("depth", [4096, DEEPEST])
def test_sums_that_only_grow(dtype: Any, depth: int) -> None:
    """Take numbers of one sign: where Tensor Cores cut what they add, errors do not cancel."""
    a, b = drawn(128, depth, dtype=dtype, signed=False), drawn(depth, 128, dtype=dtype, signed=False)
    held(toprung.matmul(a, b), a, b, signed=False)
    assert "cublas_half" in ran()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_batches_offsets_bias_and_special_values(dtype: Any) -> None:
    a, b = drawn(5, 64, 130, dtype=dtype), drawn(130, 66, dtype=dtype)
    held(toprung.matmul(a, b), a, b)
    assert "cublas_half" in ran()
    inner, cols = a[:, :, 2:98], b[2:98, 2:34]  # begins 4 bytes behind an aligned address, rows with gaps
    held(toprung.matmul(inner, cols), inner, cols)
    bias = drawn(66, dtype=torch.float32)
    made = toprung.matmul(a[0], b, bias=bias, activation="relu")
    torch.testing.assert_close(made, torch.relu(a[0].double() @ b.double() + bias).float(), rtol=1e-4, atol=1e-4)
    a[0, 3, 5], a[0, 4, 7] = torch.inf, torch.nan
    found, wanted = toprung.matmul(a[0], b), a[0].double() @ b.double()
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())


def test_two_types_and_own_kernels_are_not_its() -> None:
    a, b = drawn(64, 64, dtype=torch.float16), drawn(64, 64, dtype=torch.bfloat16)
    held(toprung.matmul(a, b), a, b)
    assert "cublas_half" not in ran()
    held(toprung.matmul(a, a, own=True), a, a)
    assert "cublas_half" not in ran()


def test_a_graph_holds_it() -> None:
    a, b = drawn(256, 512, dtype=torch.bfloat16), drawn(512, 128, dtype=torch.bfloat16)
    out = torch.empty(256, 128, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        toprung.matmul(a, b, out=out)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        toprung.matmul(a, b, out=out)
    a.copy_(drawn(256, 512, dtype=torch.bfloat16) / 2)
    out.fill_(torch.nan)
    graph.replay()
    held(out, a, b)
