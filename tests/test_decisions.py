"""Decisions by prediction, on both sides of each limit: ours or a library's, fp32x or fp32, together or alone, host or device."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import toprung
from test_tuned import H200, install_cublas
from toprung.blas import installed, product
from toprung.blas.product import InPlace, OnHost
from toprung.device import Device
from toprung.dispatch import mixed, ranking
from toprung.dispatch.select import LONG, _group_family, group_family, select
from toprung.dispatch.selection import Selection
from toprung.execute import host
from toprung.gemm.desc import GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import Groups
from toprung.kernels.hopper_fp32x.group import group_launches
from toprung.kernels.registry import families, family

WELL = {"align_a": 4, "align_b": 4, "align_c": 4}
SQUARE = GemmDesc(1024, 1024, 1024, **WELL)


@pytest.mark.parametrize(
    "times, ours", [(0.5, False), (installed.MARGIN - 0.01, False), (installed.MARGIN + 0.01, True), (9.0, True)]
)
def test_a_library_s_own_product_is_left_where_ours_is_not_faster(
    times: float, ours: bool, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(ranking, "against_installed", lambda *_: times)
    a = np.ones((33, 33), np.float32)
    call: Any = toprung.plan(a, a, own=True, device=device)._call
    assert isinstance(call, InPlace) and (installed.slower(call, "theirs") == "") is ours
    (desc,) = call.executable.selections
    monkeypatch.setitem(call.executable.selections, desc, replace(call.executable.selections[desc], weighed=True))
    assert installed.slower(call, "theirs") == "", "both were measured"


def test_what_is_theirs_already_is_left(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "best", lambda: device)
    a = np.ones((33, 33), np.float32)
    call: Any = toprung.plan(a, a)._call
    assert isinstance(call, OnHost) and "host's own" in installed.slower(call, "theirs")


def test_another_class_is_taken_where_it_is_faster_by_its_margin() -> None:
    one = family("hopper_inflight")
    desc = GemmDesc(128, 128, 128, **WELL)  # so small that operations alone do not decide
    ours, _ = ranking.against_fp32(H200, desc, one, lambda: 1.0)
    for by, taken in ((0.5, False), (0.99, False), (1.01, True), (2.0, True)):
        assert (ranking.slower_than_fp32(H200, desc, one, lambda by=by: by * ours * one.margin) == "") is taken
    for by, worth in ((0.7 * ranking.NEAR, True), (0.99, True), (1.01, False)):
        found = ranking.against_fp32(H200, desc, one, lambda by=by: ours / by / ranking.NEAR)
        assert (found[0] <= ranking.NEAR * found[1]) is worth
    large, far = GemmDesc(8192, 8192, 8192, **WELL), GemmDesc(8192, 8192, 8, **WELL)
    assert ranking.promising(H200, large, one) and ranking.slower_than_fp32(H200, large, one) == ""
    assert one.supports(H200, far) or ranking.slower_than_fp32(H200, far, one)


@pytest.mark.parametrize("ratio, name", [(0.5, "cublas"), (0.99, "cublas"), (1.01, "ours"), (3.0, "ours")])
def test_what_is_installed_runs_where_it_is_faster(ratio: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install_cublas(monkeypatch)
    monkeypatch.setattr(ranking, "ratio", lambda *_: ratio)
    found = select(H200, SQUARE, own=False)
    assert (found.family.name == "cublas") is (name == "cublas") and select(H200, SQUARE).family.own


@pytest.mark.parametrize("share, together", [(0.5 * LONG, True), (0.9, True), (1.1, False), (math.inf, False)])
def test_a_product_joins_a_group_where_its_share_is_less_than_its_time_alone(
    share: float, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A share that is short is not compared; others are given here as a part of the time alone."""
    _group_family.cache_clear()
    desc = GemmDesc(4096, 4096, 4096, **WELL)
    alone = min(ranking.ranked(H200, desc, name)[0].seconds for name in ("fp32", "fp32x"))
    assert alone > LONG
    given = Groups(lambda *_: share if share < LONG else share * alone, launches=group_launches)
    for one in families():
        monkeypatch.setattr(type(one), "groups", given)
    assert (group_family(H200, desc, "auto", frozenset()) is not None) is together
    _group_family.cache_clear()


@pytest.mark.parametrize("times, read", [(0.5, False), (0.99, False), (1.01, True), (4.0, True)])
def test_halves_are_read_as_they_lie_where_converting_them_takes_longer(
    times: float, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    desc = replace(SQUARE, type_a="bfloat16")
    ours = mixed.ranked(H200, desc, "auto")[0][0].seconds
    monkeypatch.setattr(mixed, "converted_seconds", lambda *_: times * ours)
    assert isinstance(mixed.select(H200, desc, "auto"), Selection) is read


def test_the_host_multiplies_what_is_done_before_a_gpu_has_it(device: Device) -> None:
    blas = host.host_blas()
    assert blas is not None
    small, large = ((8, 8), (8, 8)), ((4096, 4096), (4096, 4096))
    assert host.is_small(blas, *small) and not host.is_small(blas, *large)
    assert "longer" in host.preferred(blas, H200, *small) and host.preferred(blas, H200, *large) == ""
    assert "no GPU" in host.preferred(blas, replace(device, kind="cpu"), *large)


def test_plain_fp32_s_seconds_are_those_of_operations_or_of_bytes() -> None:
    start = cost_model.PLAIN_START
    busy, moving = GemmDesc(8192, 8192, 8192), GemmDesc(8192, 8192, 1)
    assert cost_model.plain_fp32_seconds(busy) == pytest.approx(start + 2 * 8192**3 / cost_model.PLAIN_RATE)
    assert cost_model.plain_fp32_seconds(moving) == pytest.approx(start + 4 * (8192**2 + 2 * 8192) / cost_model.MEMORY_RATE)
