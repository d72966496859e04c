"""report(measure=True): how long products take on toprung's kernels and on PyTorch's, measured after the fact."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import toprung.torch
from toprung.torch import products, timing
from torch_device import DEVICE, EVERY


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    toprung.torch.disable()
    products.forget()


def some_products() -> None:
    """Products of each operator, in new results and given ones, of operands with gaps, expanded, and off an aligned address."""

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device=DEVICE)

    out, long = made(9, 7), made(40)
    torch.mm(made(9, 5), made(7, 5).T, out=out)
    out.addmm_(made(9, 3), made(3, 7))
    torch.addmm(made(7), made(9, 3), made(3, 7))
    torch.mm(made(1, 5).expand(9, 5), made(5, 14)[:, ::2])
    torch.mm(long[1:36].view(5, 7), made(7, 4))
    torch.bmm(made(2, 3, 4), made(2, 4, 5))
    torch.baddbmm(made(2, 3, 5), made(2, 3, 4), made(2, 4, 5))
    torch.mv(made(6, 30), made(30))


def test_each_kind_is_measured_and_counts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE", 1e-4)
    toprung.torch.enable(**EVERY)
    some_products()
    before = [(row.op, row.problem, row.taken, row.left) for row in toprung.torch.report().rows]
    found = toprung.torch.report(measure=True)
    assert [(row.op, row.problem, row.taken, row.left) for row in found.rows] == before and len(before) == 7
    assert all(0 < row.seconds < 1 and 0 < row.their_seconds < 1 and row.path == "fp32" for row in found.rows)
    assert all(bool(row.their_kernel) == (DEVICE == "cuda") for row in found.rows)
    assert "µs; PyTorch's" in " ".join(str(found).split()) and max(map(len, str(found).splitlines())) <= 80
    assert toprung.torch.is_enabled()


def test_nothing_is_measured_unless_it_is_asked_for() -> None:
    toprung.torch.enable(**EVERY)
    some_products()
    found = toprung.torch.report()
    assert all(math.isnan(row.seconds) and math.isnan(row.their_seconds) for row in found.rows) and "µs" not in str(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["rows"][0]["seconds"] is None


def test_what_pytorch_ran_has_pytorchs_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE", 1e-4)
    monkeypatch.setattr(products, "_slower", lambda call: "it is as fast")
    toprung.torch.enable(**{**EVERY, "own": False})
    torch.mm(torch.randn(9, 5, device=DEVICE), torch.randn(5, 7, device=DEVICE))
    (row,) = toprung.torch.report(measure=True).rows
    assert row.left == 1 and math.isnan(row.seconds) and row.their_seconds > 0 and row.path == row.kernel == ""


def test_products_that_memory_is_too_small_for_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    toprung.torch.enable(**EVERY)
    torch.mm(torch.randn(9, 5, device=DEVICE), torch.randn(5, 7, device=DEVICE))
    monkeypatch.setattr(timing, "_laid", full)
    (row,) = toprung.torch.report(measure=True).rows
    assert math.isnan(row.seconds) and math.isnan(row.their_seconds) and row.taken == 1
