"""Tiles validate themselves, derive their sizes, print themselves; rules say why a tile is not legal."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprung.device import Device
from toprung.kernels import blocks
from toprung.oracle.gemm import Gemm
from toprung.tile import COMMON, Tile, broken, divides, fits_local, legal_tiles

DEVICE = Device(
    id="none:0", backend="none", name="paper device", vendor="", driver="", runtime="", kind="gpu", compute_units=2,
    clock_mhz=1000.0, lanes=128, local_bytes=4096, memory_bytes=1 << 20, max_buffer_bytes=1 << 19, max_work_group=256,
    max_items=(128, 64, 1),
    base_align=128, vector_widths=(1, 2, 4),
)  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, True, False, "8"])
@pytest.mark.parametrize("name", ["BM", "BK", "TN", "VEC", "SPLIT_K"])
def test_a_parameter_is_a_positive_integer(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be an integer of at least 1, not {value!r}"):
        replace(Tile(BM=8, BN=8), **{name: value})


def test_padding_may_be_zero_but_not_less() -> None:
    assert Tile(BM=8, BN=8, PADA=0).given() == {"BM": 8, "BN": 8, "PADA": 0}
    with pytest.raises(ValueError, match="PADB must be an integer of at least 0, not -1"):
        Tile(BM=8, BN=8, PADB=-1)


def test_derived_sizes() -> None:
    tile = Tile(BM=64, BN=32, BK=16, TM=8, TN=4, VA=2, VB=4)
    assert (tile.DM, tile.DN, tile.work_items, tile.widest) == (8, 8, 64, 4)
    assert tile.defines() == {"BM": 64, "BN": 32, "BK": 16, "TM": 8, "TN": 4, "VA": 2, "VB": 4, "DM": 8, "DN": 8, "LA": 8, "LB": 2}
    plain = Tile(BM=16, BN=8)
    assert (plain.DM, plain.DN, plain.work_items, plain.widest) == (16, 8, 128, 1)


@pytest.mark.parametrize(
    ("tile", "text"),
    [
        (Tile(BM=32, BN=16), "32×16"),
        (Tile(BM=32, BN=32, BK=8, TM=8), "32×32×8 8×1"),
        (Tile(BM=64, BN=64, BK=16, TM=8, TN=4, VEC=4, PADA=1), "64×64×16 8×4 v4"),
        (Tile(BM=32, BN=32, BK=64, TM=8, TN=32, VA=8, VB=16), "32×32×64 8×32 v8/16"),
        (Tile(BM=32, BN=32, BK=8, TM=4, TN=4, WM=16, WN=32, KU=2, STAGES=3), "32×32×8 4×4 WM16 WN32 KU2 STAGES3"),
    ],
)
def test_a_tile_prints_itself(tile: Tile, text: str) -> None:
    assert str(tile) == text


@pytest.mark.parametrize(
    ("tile", "reason"),
    [
        (Tile(BM=10, BN=8, TM=4), "BM % TM = 0: every work-item owns TM whole rows"),
        (Tile(BM=8, BN=10, TN=4), "BN % TN = 0"),
        (Tile(BM=8, BN=8, TN=4, VB=8), "TN % VB = 0"),
        (Tile(BM=8, BN=8, TM=4, VA=8), "TM % VA = 0"),
        (Tile(BM=8, BN=8, TN=2, VEC=4), "TN % VEC = 0"),
        (Tile(BM=32, BN=32), "DM · DN ≤ largest work-group: the device would refuse the launch"),
        (Tile(BM=1, BN=256), "DM · DN ≤ largest work-group"),
        (Tile(BM=128, BN=1), "DM · DN ≤ largest work-group"),
        (Tile(BM=8, BN=8, TN=8, VEC=8), "vector widths exist: the device's kernel language has no vector type this wide"),
    ],
)
def test_what_is_not_legal_says_why(tile: Tile, reason: str) -> None:
    reasons = broken(COMMON, tile, DEVICE)
    assert any(r.startswith(reason) for r in reasons), reasons


def test_every_broken_rule_is_named() -> None:
    assert len(broken(COMMON, Tile(BM=1001, BN=1001, TM=2, TN=2), DEVICE)) == 3


def test_local_memory_is_a_rule() -> None:
    rule = fits_local(lambda t: 4 * t.BM * t.BN)
    assert broken([rule], Tile(BM=32, BN=32), DEVICE) == []
    (reason,) = broken([rule], Tile(BM=32, BN=33), DEVICE)
    assert reason.startswith("local memory fits: ") and "crash" in reason


def test_legal_tiles_are_all_of_the_space_that_break_nothing() -> None:
    found = list(legal_tiles({"BM": (8, 12, 512), "TM": (1, 8)}, Tile(BM=8, BN=4, BK=5), COMMON, DEVICE))
    assert found == [Tile(BM=8, BN=4, BK=5, TM=1), Tile(BM=8, BN=4, BK=5, TM=8), Tile(BM=12, BN=4, BK=5, TM=1),
                     Tile(BM=512, BN=4, BK=5, TM=8)]  # fmt: skip


@given(st.integers(1, 64), st.integers(1, 64))
def test_divides_is_divisibility(whole: int, part: int) -> None:
    assert divides("BM", "TM", "").test(Tile(BM=whole, BN=1, TM=part), DEVICE) == (whole // part * part == whole)


def test_a_device_tells_its_peak_only_where_it_is_known() -> None:
    assert DEVICE.peak_gflops == 2 * 128 * 2
    assert replace(DEVICE, lanes=None).peak_gflops is None


@pytest.mark.parametrize(
    ("name", "slug"),
    [("NVIDIA H200", "nvidia-h200"), ("pthread-Intel(R) Xeon(R) Processor @ 2.50GHz", "intel-xeon-processor-2.50ghz")],
)
def test_a_devices_folder_name(name: str, slug: str) -> None:
    assert replace(DEVICE, name=name).slug == slug


def test_sums_of_a_large_shallow_product_may_be_one_chain() -> None:
    tile = next(one.tile for one in blocks.BLOCKS if (one.tile.TM, one.tile.TN) == (8, 8))
    side = math.isqrt(blocks.UNCUT_SHALLOW)
    for m, k, slices, chain in ((side, 128, 1, True), (side - 1, 128, 1, False), (side, 129, 1, False), (side, 128, 2, False)):
        found = blocks.chain_of(Gemm(m, side, k).desc, replace(tile, SPLIT_K=slices))
        assert (found == 0) is chain, (m, k, slices)
