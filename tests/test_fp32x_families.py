"""Families of one accuracy class: which is selected, by the cost model and by what a store knows of one of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from typing import Any

import pytest

import trial
from golden import gemm
from test_tuned import H200, entry, large_tile, stored  # noqa: F401
from toprung.backends import cublas
from toprung.dispatch import ranking
from toprung.dispatch.select import select
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import candidates
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper_fp32x import cost
from toprung.kernels.hopper_fp32x.config import in_flight, with_parts
from toprung.kernels.hopper_fp32x.cost import CLUSTERED, alone, in_slices, places
from toprung.kernels.hopper_fp32x.family import FP32X as BEFOREHAND
from toprung.kernels.hopper_fp32x.family import INFLIGHT as IN_FLIGHT
from toprung.kernels.hopper_fp32x.family import PRESPLIT
from toprung.oracle.gemm import Gemm
from toprung.store import Store
from toprung.tile import Tile


def batch(count: int, m: int, n: int, k: int, trans: str = "NN") -> Any:
    return dataclasses.replace(gemm(m, n, k, trans), batch=count, stride_a=m * k, stride_b=k * n, stride_c=m * n)


@pytest.mark.parametrize(
    "desc, family",
    [
        (batch(64, 1024, 1024, 64, "NT"), "hopper_inflight"), (batch(64, 1024, 64, 1024), "hopper_inflight"),
        (batch(32, 512, 512, 512), "hopper_inflight"), (gemm(512, 512, 512), "hopper_inflight"),
        (gemm(128, 4096, 4096), "hopper_inflight_split_k"), (gemm(256, 256, 262144, "TN"), "hopper_inflight_split_k"),
        (gemm(1024, 1024, 4096, "TN"), "hopper_inflight"), (gemm(4096, 256, 7168, "NT"), "hopper_presplit"),
        (gemm(16384, 128, 2048, "NT"), "hopper_presplit"),
        (gemm(2048, 2048, 2048), "hopper_fp32x"), (gemm(4096, 3072, 1024, "NT"), "hopper_fp32x"),
        (gemm(64, 64, 64), "plain"), (gemm(16, 4096, 4096), "plain"), (gemm(512, 512, 63), "plain"),
    ],
    ids=str,
)  # fmt: skip
def test_auto_takes_the_fastest_of_five(desc: Any, family: str) -> None:
    """Which that is was measured on an H200."""
    found = select(H200, desc, True, "auto")
    assert found.family.name == family or (family == "plain" and found.precision == "fp32")


def test_long_rows_of_b_take_a_launch_longer_to_split(monkeypatch: pytest.MonkeyPatch) -> None:
    config = next(c for c in candidates(PRESPLIT, H200, gemm(208, 256, 41240, "TT")) if c.BN == 64 and c.SLICES == 8)
    depths = 4096, 8192, 40960

    def seconds_of() -> list[float]:
        return [cost.alone(gemm(208, 256, K, "TT"), config, 132)[0] for K in depths]

    monkeypatch.setattr(cost.PRESPLIT, "before", math.inf)  # the product's launch splits B
    whole = seconds_of()
    for number in ("round", "short_round"):
        monkeypatch.setattr(cost.PRESPLIT, number, 0.0)
    first = [a - b for a, b in zip(whole, seconds_of(), strict=True)]
    assert first[0] > 0 and first == pytest.approx([first[0], first[0], 5 * first[0]])


def test_a_neighbour_is_left_where_its_tiles_need_another_turn(stored: Store) -> None:  # noqa: F811
    """Held against its own family: the best of its class is predicted faster than it was where it was the fastest measured."""
    options = {"GROUP": 8}  # 128 tiles at 1024 cubed, 153 at 1040, on 132 SMs
    stored.add(entry(H200, Gemm(1024, 1024, 1024), BEFOREHAND.name, Tile(128, 64, 32, STAGES=4), 1e-6, options=options))
    for M, N in ((1024, 1024), (1020, 1000)):
        found = select(H200, Gemm(M, N, 1024).desc, True, "fp32x")
        assert (found.family, found.config.BN) == (BEFOREHAND, 64) and "tuned on" in found.why
    left = select(H200, Gemm(1040, 1040, 1040).desc, True, "fp32x")
    assert left.config.BN == 128
    assert any("another of its tiles by the cost model here" in why for _, why in left.passed_over)


def measured() -> list[Any]:
    """Return the products of the record, and each one's seconds by what ran."""
    found = []
    for row in json.loads(trial.fixture("h200-inflight.json").read_text())["inflight"]:
        count, m, n, k = row["size"]
        turned, strides = (x == "T" for x in row["layout"]), (m * k, k * n, m * n) if count > 1 else (0, 0, 0)
        desc = GemmDesc(m, n, k, count, *turned, 0, 0, 0, *strides, 4, 4, 4, beta_zero=True)
        found.append((desc, row["seconds"]))
    return found


def test_auto_never_takes_it_where_the_vendor_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the selection against 67 measured products, of which the model was fitted to 48."""
    monkeypatch.setattr(cublas, "library", lambda: "installed")
    taken = {}
    for desc, seconds_of in measured():
        found = select(H200, desc, False, "auto")
        if found.family is IN_FLIGHT and str(found.config) in seconds_of:  # slices of less than 128 of K were not measured there
            taken[desc] = seconds_of[str(found.config)] / seconds_of["fp32"]
    assert len(taken) > 20 and max(taken.values()) <= 1.0, taken


def test_parts_of_k_are_predicted_as_they_were_measured_however_many() -> None:
    """Hold the model against 124 times of an H200: it is fitted to others, of an H100."""
    ratios = {}
    for one in json.loads(trial.fixture("h200-parts-of-k.json").read_text())["products"]:
        (m, n, k), turned = one["size"], [x == "T" for x in one["layout"]]
        widths = (next(w for w in (4, 2, 1) if row % w == 0) for row in (m if turned[0] else k, k if turned[1] else n, n))
        desc = GemmDesc(m, n, k, 1, *turned, 0, 0, 0, 0, 0, 0, *widths)
        for config in itertools.starmap(with_parts, cost.in_parts(desc, H200.compute_units)):
            if took := one["microseconds"].get(str(config)):
                ratios[desc, config.k_parts, str(config)] = 1e6 * cost.alone(desc, config, H200.compute_units)[0] / took
    assert len(ratios) == 124 and 0.97 < statistics.median(ratios.values()) < 1.03
    assert all(0.7 < ratio < 1.5 for ratio in ratios.values()), ratios
    many = [ratio for (_, parts, _), ratio in ratios.items() if parts > 50]
    assert len(many) > 8 and statistics.geometric_mean(many) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "desc, family",
    [
        (gemm(64, 226, 26768, "TT"), "tiled"), (gemm(80, 58, 81424, "NT"), "tiled"), (gemm(64, 128, 52912, "TN"), "tiled"),
        (gemm(96, 160, 46264, "TT"), "hopper_inflight_split_k"), (gemm(2384, 47, 4740), "hopper_inflight_split_k"),
    ],
    ids=str,
)  # fmt: skip
def test_a_deep_product_goes_to_what_is_faster_with_many_parts(desc: Any, family: str) -> None:
    """The other one took 1.13 to 1.50 times as long on an H100."""
    assert select(H200, desc, True, "auto").family.name == family


def test_asked_for_it_is_the_faster_of_both() -> None:
    for desc in (gemm(64, 64, 64), gemm(17, 17, 64), gemm(512, 512, 512)):
        assert select(H200, desc, True, "fp32x").family is IN_FLIGHT
    assert select(H200, gemm(4096, 4096, 4096), True, "fp32x").family is BEFOREHAND


def test_what_a_store_says_of_one_family_it_does_not_say_of_another(stored: Store) -> None:  # noqa: F811
    problem = Gemm(512, 512, 448)  # too short to be cut into parts
    stored.add(
        entry(H200, problem, "hopper_fp32x", Tile(128, 128, 32, STAGES=4), 2e-5, options={"GROUP": 8}),
        entry(H200, problem, tile=Tile(**large_tile()), seconds=1e-5),
    )
    assert select(H200, problem.desc, True, "auto").family is IN_FLIGHT
    made = IN_FLIGHT.starts(H200, problem.desc)
    tile, options = in_flight(**next(iter(made))).encode().values()
    stored.add(entry(H200, problem, "hopper_inflight", Tile(**tile), 3e-5, options=options))
    found = select(H200, problem.desc, True, "auto")
    assert found.precision == "fp32" and "times as long" in dict(found.passed_over)["fp32x"]


def test_a_family_that_was_not_measured_is_taken_where_it_is_clearly_faster(stored: Store) -> None:  # noqa: F811
    problem = Gemm(256, 256, 256, batch=64)
    (config,) = candidates(BEFOREHAND, H200, problem.desc)
    made = config.encode()
    stored.add(entry(H200, problem, "hopper_fp32x", Tile(**made["tile"]), 1e-4, options=made["options"]))
    found = select(H200, problem.desc, True, "fp32x")
    assert found.family is IN_FLIGHT and any("not measured there" in why for _, why in found.passed_over)
    other = next(c for c in candidates(IN_FLIGHT, H200, problem.desc) if c.BN == 64).encode()
    stored.add(entry(H200, problem, "hopper_inflight", Tile(**other["tile"]), 2e-4, options=other["options"]))
    assert select(H200, problem.desc, True, "fp32x").family is BEFOREHAND, "both were measured"


def test_what_was_measured_to_be_slower_is_not_taken_for_its_class(stored: Store) -> None:  # noqa: F811
    """Split beforehand took longer than plain fp32; in flight, not measured, should not; then it is the one that runs."""
    problem = Gemm(1024, 1024, 1024)
    (config,) = candidates(BEFOREHAND, H200, problem.desc)
    made = config.encode()
    stored.add(
        entry(H200, problem, "hopper_fp32x", Tile(**made["tile"]), 2e-5, options=made["options"]),
        entry(H200, problem, tile=Tile(**large_tile()), seconds=1e-5),
    )
    assert select(H200, problem.desc, True, "auto").family is IN_FLIGHT


@pytest.mark.parametrize("desc", [gemm(64, 256, 7168, "NT"), batch(64, 256, 256, 256), gemm(4096, 4096, 4096)], ids=str)
def test_more_work_takes_no_less_time(desc: Any) -> None:
    for config, _ in in_slices(desc, 132):
        more = (
            dataclasses.replace(desc, K=2 * desc.K, lda=0, ldb=0),
            dataclasses.replace(desc, batch=9 * desc.batch, stride_c=1 << 24),
        )
        times = [alone(d, config, 132)[0] for d in (desc, *more)]
        assert 2e-6 < times[0] <= min(times[1:])
        assert config.SLICES in CLUSTERED and places(132)[config.SLICES] % config.SLICES == 0


@pytest.mark.parametrize("units", [114, 132])
@pytest.mark.parametrize("desc", [gemm(512, 512, 512), gemm(64, 448, 8192), gemm(43, 204, 72848), batch(16, 36, 300, 268)], ids=str)
def test_no_two_blocks_share_an_sm_where_each_can_have_one(desc: Any, units: int) -> None:
    """The ring is so long then that a second one does not fit; a cluster of 16 needs as many SMs in one GPC for that."""
    found = [c for c, _ in in_slices(desc, units) if c.most > 1]
    for config in found:
        blocks = block_count(desc, config) * config.SLICES
        room = blocks <= int(units * CLUSTERED[config.SLICES]) // config.SLICES * config.SLICES
        assert config.is_alone == (room and (units == 132 or config.SLICES <= 8)), config
        assert (config.shared_bytes > 113 * 1024) == config.is_alone and not config.refused()
    assert any(c.is_alone for c in found)
    assert {c.registers for c in found if c.BN == 64} == {in_flight(1, 64, 5).registers}, "the text is the same"


def test_clusters_are_weighed_while_there_is_room() -> None:
    slices = {c.SLICES for c, _ in in_slices(gemm(64, 256, 7168, "NT"), 132)}
    assert slices == {1, 2, 4, 8, 16}
    for units, most in ((132, 16), (114, 8)):
        assert max(c.SLICES for c, _ in in_slices(gemm(64, 256, 7168, "NT"), units) if c.resident == 1) == most
    assert {c.SLICES for c, _ in in_slices(gemm(4096, 4096, 4096), 132)} == {1}
    ours, plain = ranking.against_fp32(H200, gemm(256, 256, 7168, "NT"), IN_FLIGHT)
    assert ours < plain
