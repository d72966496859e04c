"""The choice against what was measured: excerpts of what benchmarks/tiles.py, benchmarks/routes.py and checks of the promise found.

No device is needed. To hold the choice to newer times, cut the fixtures anew from newer result files.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import golden
import trial
from tables.tuning import Drawn, device_of, drawn, now
from toprung.device import Device
from toprung.dispatch import ranking
from toprung.dispatch.ranking import Predicted, ranked, ratio, select_own, slower_than_fp32
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, Selection, decoded
from toprung.gemm.classes import is_skinny, problem_class
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels import blocks, cost_model, skinny_model
from toprung.kernels.base import MOST, KernelConfig, KernelFamily, candidates
from toprung.kernels.blocks import Block, block_like, width_of_c
from toprung.kernels.cost_model import block_count
from toprung.kernels.cublas import family as cublas
from toprung.kernels.helpers import ADD
from toprung.kernels.hopper_sgemm import cost as sgemm_cost
from toprung.kernels.registry import families, family
from toprung.kernels.skinny import family as skinny_family
from toprung.kernels.skinny.family import SkinnyConfig
from toprung.kernels.tiled.record import RECORD as TILED
from toprung.lab.harness.results import read
from toprung.oracle.gemm import TRANSPOSES, Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.problems import problem_of
from toprung.tile import Tile
from toprung.tune import rows

SWITCHES = ("ORDER", "RESIDENT", "AHEAD", "GROUP_M", "SMALL")
ROUTES = trial.fixture("h200-routes.json")
PRESENT = trial.fixture("h100-routes.json")
"""A record of the kernels' present text, on an H100."""
LEAST, LEAST_MEAN = 0.86, 0.97
WORST = {"3168×16×2928 NT": 1.60, "7083×1472": 1.39}
"""Drawn shapes on which what is selected takes more than 1.3 times as long as the best that was measured."""
ENGINE = Path(__file__).parents[1] / "docs" / "engine.md"
"""The page that names them."""

Trial = Mapping[str, Any]

# What the record's candidates are chosen from: it is older than Hopper's plain fp32 kernel and has no time of it, so that
# replays are of a device like an H200 that has not what that kernel needs.
H200 = Device(
    "cuda:0", "cuda", "NVIDIA H200", "NVIDIA", "", "", "gpu", 132, 1980, 128, 49152, 140 << 30, 140 << 30, 1024, (1024, 1024, 64),
    256, (1, 2, 4), 32, "sm_89",
)  # fmt: skip


TABLE, CHAINED = blocks.BLOCKS, blocks.CHAINED_SUMS
TEAMS, SKINNY, SLICES = skinny_model.TEAMS, cost_model.SKINNY, skinny_family.SIZES


def forget() -> None:
    for one in (
        ranking.of_family.cache_clear,
        skinny_model.tables.clear,
        blocks.narrowed.cache_clear,
        blocks._by_shape.cache_clear,
    ):
        one()


@pytest.fixture(autouse=True)
def table_of_then(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The records are of kernels of then: sums were one chain, and short sides had one load on its way, and no clusters.

    Their tables and models are still what a vendor's are weighed by.
    """
    monkeypatch.setattr(blocks, "BLOCKS", blocks.VENDOR_BLOCKS)
    monkeypatch.setattr(blocks, "CHAINED_SUMS", 128)
    monkeypatch.setattr(skinny_model, "TEAMS", skinny_model.VENDOR_TEAMS)
    monkeypatch.setattr(cost_model, "SKINNY", cost_model.VENDOR_SKINNY)
    monkeypatch.setattr(skinny_family, "SIZES", ())
    forget()
    yield
    forget()


HOPPER = replace(H200, arch="sm_90", dynamic_local_bytes=232448)

CUBLAS = decoded({"kernel": "cublas"})


def own(problem: Gemm | Gemv) -> Any:
    """The configuration that an H200 gets whatever is stored."""
    return select_own(H200, problem.desc).config


def best(device: Device, desc: Desc) -> Predicted:
    """The candidate of ours that takes least by the cost model."""
    return ranked(device, desc)[0]


def cublas_seconds(device: Device, desc: Desc) -> float:
    """cuBLAS's time by the cost model."""
    return CUBLAS.family.cost(device, desc, CUBLAS.config)


def cublas_is_slower(device: Device, desc: Desc) -> bool:
    """Return True if the cost model prefers ours."""
    return ratio(device, desc, CUBLAS.family) >= 1


def cycles(
    device: Device, desc: Desc, block: Block, tile: Tile, slices: int, p: Any = cost_model.BLOCK
) -> float:  # fmt: skip
    """Cycles of a block by the cost model, which no host's time hides."""
    assert isinstance(desc, GemmDesc)
    vc, wide, units = width_of_c(desc, tile, slices), desc.widths[2], device.compute_units
    return cost_model.block_cycles(desc, tile, block.efficiency, block.resident, slices, vc, wide, units, device.lanes or 128, p)


def kernel_of(selected: Selection | Candidate) -> str:
    """The family's name; of the skinny kernels which one."""
    return selected.config.kernel if isinstance(selected.config, SkinnyConfig) else selected.family.name


@functools.cache
def problems() -> dict[str, tuple[Gemm, list[Trial]]]:
    """Name → problem, and the candidates that benchmarks/tiles.py timed, fastest first."""
    record, found = read(trial.fixture("h200-tiles.json")), {}
    candidates = [{**c, **decoded(c).encode()} for c in record["choices"]]
    for entry in record["problems"]:
        values = {k: v for k, v in entry["problem"].items() if k != "routine"}
        problem = Gemm(**values)
        found[str(problem)] = problem, [{**candidates[n], "seconds": s} for n, s in entry["quick"]]
    return found


def seconds(candidate: Candidate, timed: list[Trial]) -> float | None:
    """Return the recorded time of a candidate; where its switches were not tried, the slowest of its tile's."""
    encoded = candidate.encode()
    same = [t for t in timed if (t["kernel"], t["tile"]) == (encoded["kernel"], encoded["tile"])]
    wanted = encoded["options"]
    own = [t for t in same if all(t["options"].get(s) == wanted.get(s) for s in SWITCHES)]
    return max((t["seconds"] for t in own or same), default=None)


def share(problem: Gemm, timed: list[Trial]) -> float | None:
    """The fastest candidate's time as a share of the chosen one's; None for a choice that nobody timed."""
    found = seconds(select_own(H200, problem.desc).candidate, timed)
    return timed[0]["seconds"] / found if found else None


def known_shares() -> dict[str, float]:
    """Return the shares of problems whose choice was timed, by name."""
    return {name: found for name, one in problems().items() if (found := share(*one)) is not None}


def test_the_choice_is_near_the_best_that_was_measured():
    shares = known_shares()
    assert len(shares) >= 16
    bad = {name: f"{s:.3f} {select_own(H200, problems()[name][0].desc)}" for name, s in shares.items() if not s >= LEAST}
    assert not bad
    assert statistics.geometric_mean(shares.values()) >= LEAST_MEAN


def test_a_worse_table_is_noticed(monkeypatch: pytest.MonkeyPatch):
    only = tuple(c for c in blocks.BLOCKS if (c.tile.BM, c.tile.BN, c.tile.BK) == (64, 64, 16))
    monkeypatch.setattr(blocks, "BLOCKS", only)
    forget()
    assert min(known_shares().values()) < LEAST


@functools.cache
def held() -> tuple[Device, list[Drawn]]:
    """The drawn shapes that the model was not fitted to, and where they were measured."""
    record = read(PRESENT)
    return device_of(record), [one for one in drawn(record) if one.held]


def kept(shares: list[float | None], within: float = 1.05) -> float:
    """Return the share of the measured problems that are within this ratio of the best."""
    known = [s for s in shares if s is not None]
    return sum(s <= within for s in known) / len(known)


@pytest.fixture
def table_of_now(table_of_then: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles and teams that are weighed now, for the record of them."""
    monkeypatch.setattr(blocks, "BLOCKS", TABLE)
    monkeypatch.setattr(blocks, "CHAINED_SUMS", CHAINED)
    monkeypatch.setattr(skinny_model, "TEAMS", TEAMS)
    monkeypatch.setattr(cost_model, "SKINNY", SKINNY)
    monkeypatch.setattr(skinny_family, "SIZES", SLICES)
    forget()


def test_what_runs_is_near_the_best_on_shapes_it_was_not_fitted_to(table_of_now: None) -> None:
    device, shapes = held()
    shares = [one.shares(now(device, one.problem)) for one in shapes]
    known = [s for s in shares if s is not None]
    assert len(shapes) >= 120 and len(known) >= 0.92 * len(shapes)  # newer tiles, and fewer slices, have no time in the record
    assert kept(shares) >= 0.8 and kept(shares, 1.1) >= 0.9
    worst = {str(one.problem): round(s, 2) for one, s in zip(shapes, shares, strict=True) if s is not None and not s <= 1.3}
    assert worst == WORST and all(f"{name} | {s:.2f}" in ENGINE.read_text() for name, s in worst.items())
    assert kept(shares) >= kept([one.shares(CUBLAS) for one in shapes]) + 0.25


def test_large_tiles_alone_are_noticed_there(table_of_now: None, monkeypatch: pytest.MonkeyPatch) -> None:
    device, shapes = held()
    all_tiles = kept([one.shares(now(device, one.problem)) for one in shapes])
    monkeypatch.setattr(blocks, "BLOCKS", tuple(c for c in blocks.BLOCKS if c.tile.BM * c.tile.BN >= 64 * 64))
    forget()
    assert kept([one.shares(now(device, one.problem)) for one in shapes]) < all_tiles - 0.05


def test_cublas_is_told_from_ours_where_they_differ(table_of_now: None) -> None:
    device, shapes = held()
    sides: dict[bool, list[bool]] = {True: [], False: []}
    for one in shapes:
        theirs = one.seconds(CUBLAS)
        ours = min(s for c, s in one.timed if c.kernel != "cublas")
        if theirs and not 1 / 1.08 <= theirs / ours <= 1.08:
            sides[theirs > ours].append(cublas_is_slower(device, one.problem.desc) == (theirs > ours))
    assert len(sides[True]) >= 20 and statistics.mean(sides[True]) >= 0.95
    assert len(sides[False]) - sum(sides[False]) <= 1, "few products of this third are cuBLAS's by more"


def cublas_errors() -> list[float]:
    """The model's times of cuBLAS over the record's, of batches with a short side that take longer than the host does."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        theirs, call = one.seconds(CUBLAS), one.problem.desc
        if theirs and theirs > 20e-6 and isinstance(one.problem, Gemm) and one.problem.batch > 1 and min(call.M, call.N) <= 32:
            found.append(cublas_seconds(device, call) / theirs)
    return found


def test_cublas_has_narrow_tiles_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas.MODEL, "batched_times", {"else": 1.0})  # fitted to the best selection, not prediction
    known = cublas_errors()
    assert len(known) >= 4 and statistics.median(known) <= 1.1
    monkeypatch.setattr(cublas.MODEL, "side_of_batches", cublas.MODEL.side)
    assert statistics.median(cublas_errors()) > 1.3


def test_cublas_is_weighed_by_tiles_that_are_legal() -> None:
    call = Gemm(512, 512, 512, batch=4).desc
    assert isinstance(call, GemmDesc)
    weighed = {block.tile for block, *_ in blocks.aligned_blocks(H200, call, cublas.MODEL.side_of_batches)}
    assert len(weighed) >= 12 and all(TILED.allows(tile, (), H200) for tile in weighed)
    assert {(tile.VA, tile.VB) for tile in weighed} == {(4, 4), (4, 2)}, "no tile has too few accesses for its work-items"


def test_few_work_items_have_more_of_a_multiprocessor_each() -> None:
    # a work-group of half as many work-items, which has a multiprocessor to itself, does not take as long as the whole one
    call = Gemm(561, 41, 380, trans="NT").desc  # one of the record's
    legal: list[Any] = list(candidates(family("tiled"), H200, call))
    half, whole = (
        next(one.tile for one in legal if (one.tile.BM, one.tile.BN, one.tile.BK) == size and one.slices == 1)
        for size in ((16, 16, 32), (16, 32, 32))
    )
    assert block_count(call, half) <= H200.compute_units
    first, second = block_like(half), block_like(whole)
    assert first and second

    def halved(p: Any = cost_model.BLOCK) -> float:
        return cycles(H200, call, first, half, 1, p) / cycles(H200, call, second, whole, 1, p)

    assert halved() < 0.95 * halved(cost_model.BLOCK._replace(alone=0.0))


def last_waves() -> list[float]:
    """The model's times over the record's where three work-groups run at once and about four come to a multiprocessor."""
    found = []
    for problem, timed in problems().values():
        call = problem.desc
        for one in timed:
            slices = one["tile"].get("SPLIT_K", 1)
            like = block_like(Tile(**one["tile"])) if one["kernel"] == "tiled" else None
            if like and like.resident == 3:
                each = block_count(call, like.tile) * slices / H200.compute_units
                if 3.4 < each <= 4:
                    found.append(cycles(H200, call, like, like.tile, slices) / cost_model.hz(H200) / one["seconds"])
    return found


def test_what_is_left_after_a_wave_is_not_dealt_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    known = last_waves()
    assert len(known) >= 10 and 0.93 <= statistics.median(known) <= 1.07
    monkeypatch.setattr(cost_model, "UNEVEN", 0.0)
    assert statistics.median(last_waves()) < 0.9


def rows_of_scattered_vectors(models: Any = cost_model.SKINNY) -> list[float]:
    """The model's times over the record's where ``rows`` reads the short operand from the same banks, or nearly so."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        call = one.problem.desc
        if not is_skinny(call):
            continue
        s = call.skinny
        for candidate, seconds in one.timed:
            config = candidate.config
            if not isinstance(config, SkinnyConfig) or config.kernel != "rows":
                continue
            tile, units = config.tile, device.compute_units
            if tile.VB != 1 or config.slices != 1 or seconds <= 11e-6:
                continue
            if tile.DN == cost_model.BANKS and (tile.VEC or 1) * s.on % cost_model.BANKS == 0:
                taken = skinny_model.skinny_cycles(s, tile, 1, units, models)
                found.append(taken / cost_model.hz(device) / seconds)
    return found


def test_elements_of_the_short_operand_that_lie_in_one_bank_are_read_one_after_the_other() -> None:
    then = cost_model.VENDOR_SKINNY["rows"]._replace(
        launch=4000.0, wave=633.6, small=97.35, once=0.7447
    )  # of the record's launches
    known = rows_of_scattered_vectors({"rows": then})
    assert len(known) >= 10 and 0.8 <= statistics.median(known) <= 1.15
    assert statistics.median(rows_of_scattered_vectors({"rows": then._replace(once=0.0)})) < 0.6
    assert cost_model.SKINNY["rows"].once > 0.5


def test_narrow_rows_are_read_for_several_sums_by_few_work_items() -> None:
    # a kernel for one row at a time reads the short operand again for each: its first cache is the limit, not memory
    for M, N, K, trans in ((3, 3808, 5545, "TT"), (5504, 3, 2495, "NT")):
        found = own(Gemm(M, N, K, trans=trans))
        assert found.tile.TM == 4 and found.slices > 1


@functools.cache
def checked() -> dict[str, Any]:
    """Return what checks on shapes drawn from four seeds measured."""
    return read(trial.fixture("h200-checks.json"))


def uncut_rows_beside_cut_ones() -> list[float]:
    """Logarithms of the model's times over the checks', of uncut rows over those of the same in two slices, from 300 MB on."""
    found, units = [], device_of(checked()).compute_units
    for shape, tried in zip(checked()["shapes"], rows.read(checked()), strict=True):
        problem, timed = problem_of(shape["problem"]), dict[Tile, float]()
        for candidate, seconds in rows.right(tried):
            config = candidate.config
            if isinstance(config, SkinnyConfig) and config.kernel == "rows":
                timed[config.tile] = seconds
        if isinstance(problem, Gemv) and 4 * problem.M * problem.N > 300e6:
            s = problem.desc.skinny
            for tile, seconds in timed.items():
                if tile.SPLIT_K is None and (cut := replace(tile, SPLIT_K=2)) in timed:
                    ours, theirs = (skinny_model.skinny_cycles(s, tile, n, units, cost_model.SKINNY) for n in (1, 2))
                    found.append(math.log(ours / theirs / (seconds / timed[cut])))
    return found


def test_a_few_rows_that_are_left_take_a_wave_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # 10.1 work-groups for each multiprocessor take longer than twice five; with four at a time they would not
    known = uncut_rows_beside_cut_ones()
    assert len(known) >= 12 and statistics.mean(map(abs, known)) <= 0.045
    monkeypatch.setattr(cost_model, "REGISTERS", 4 * 48 * 256)
    assert statistics.mean(map(abs, uncut_rows_beside_cut_ones())) > 0.06


def test_the_second_pass_is_counted_as_it_is_launched() -> None:
    tile = ADD.tile_for(H200)
    assert (cost_model.ADDERS, tile.work_items % cost_model.ADDERS) == (tile.BM, 0)


def sums_of_odd_rows(p: Any = cost_model.BLOCK) -> list[float]:
    """The model's times over the record's where many slices of rows that do not lie on 16 bytes, 2 MB and more, are added."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        call = one.problem.desc
        for candidate, seconds in one.timed:
            config: Any = candidate.config
            like = block_like(config.tile) if candidate.kernel == "tiled" else None
            if like and call.N % 2 and config.slices > 4 and 2e6 < 4 * call.M * call.N * config.slices < 2e7:
                assert isinstance(call, GemmDesc)
                taken = cost_model.block_cycles(
                    call, config.tile, like.efficiency, like.resident, config.slices, 1, 1, device.compute_units, 128, p
                )
                found.append(taken / cost_model.hz(device) / seconds)
    return found


def test_adding_parts_of_odd_rows_takes_as_long_as_finding_where_they_belong() -> None:
    # the record is of a source that divided 64-bit numbers, and of launches that waited for each other
    then = cost_model.BLOCK._replace(
        launch=4572.0, iteration=224.0, load=11.5, alone=0.401, store=63.63, result=0.1833, piece=0.006778,
        scattered=1.32, exchanged=0.0, short_row=0.0, second=5006.0, adding=1731.0, written=2.27, scattered_memory=0.756,
        cache=2242.0, slices=5834.0,
    )  # fmt: skip
    assert cost_model.BLOCK.adding < then.adding
    known, without = sums_of_odd_rows(then), sums_of_odd_rows(then._replace(adding=0.0))
    assert len(known) >= 20 and 0.93 <= statistics.median(known) <= 1.07
    assert statistics.mean(abs(math.log(x)) for x in known) < 0.95 * statistics.mean(abs(math.log(x)) for x in without)


def cublas_with_few() -> list[float]:
    """The model's times of cuBLAS over the record's, of products with a side of two to four that take longer than the host."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        theirs, call = one.seconds(CUBLAS), one.problem.desc
        if theirs and theirs > 20e-6 and isinstance(one.problem, Gemm) and 1 < min(call.M, call.N) <= cublas.MODEL.narrow:
            found.append(cublas_seconds(device, call) / theirs)
    return found


def test_cublas_is_not_made_for_a_side_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.65 < statistics.median(cublas_with_few()) <= 1.05
    monkeypatch.setattr(cublas.MODEL, "narrow_times", 1.0)
    assert statistics.median(cublas_with_few()) < 0.65


def cublas_with_deep(trans: str, sides: range) -> float:
    """The median of the model's times of cuBLAS over the records', of deep products with such a shorter side, from 20 µs on."""
    theirs = [(one.problem, one.seconds(CUBLAS)) for one in drawn(read(ROUTES))]
    for shape, tried in zip(checked()["shapes"], rows.read(checked()), strict=True):
        theirs += [(problem_of(shape["problem"]), seconds) for one, seconds in rows.right(tried) if one.kernel == "cublas"]
    found = []
    for problem, seconds in theirs:
        mine = isinstance(problem, Gemm) and problem.batch == 1 and min(problem.M, problem.N) in sides
        if mine and trans in ("", problem.trans) and seconds and seconds > 20e-6 and problem.K >= 8 * max(problem.M, problem.N):
            call = problem.desc
            found.append(cublas_seconds(HOPPER, call) / seconds)
    assert len(found) >= 9
    return statistics.median(found)


def test_cublas_cuts_sums_of_wide_tiles_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cublas_with_deep("", range(17, 64)) >= 0.92
    monkeypatch.setattr(cublas.MODEL, "split_side", 0)
    assert cublas_with_deep("", range(17, 64)) < 0.9


def test_operands_along_k_cost_cublas_less_than_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas.MODEL, "deep_times", 1.0)  # a factor for larger K would hide the effect under test
    sides = range(64, 4096)
    assert cublas_with_deep("NT", sides) < 1.05 * cublas_with_deep("NN", sides)
    layouts = {**cost_model.VENDOR_BLOCK.layouts, "NT": cost_model.BLOCK.layouts["NT"]}
    monkeypatch.setattr(cost_model, "VENDOR_BLOCK", cost_model.VENDOR_BLOCK._replace(layouts=layouts))
    blocks.waves.cache_clear()
    assert cublas_with_deep("NT", sides) > 1.045 * cublas_with_deep("NN", sides)
    blocks.waves.cache_clear()


def test_a_large_product_with_a_short_side_is_not_left_to_cublas() -> None:
    assert cublas_is_slower(HOPPER, Gemm(108, 896, 6464, trans="TN").desc)  # routes.json: cuBLAS takes 1.5 times our time


@pytest.mark.parametrize("trans", TRANSPOSES[:3])
def test_many_small_products_are_split_in_flight(trans: str) -> None:
    many = Gemm(64, 64, 64, trans=trans, batch=1024).desc  # torch-products.json: 16.6 µs, plain fp32 19.3
    assert slower_than_fp32(HOPPER, many, family("hopper_inflight")) == ""


def sgemm_seconds(desc: Desc) -> float:
    """The cost model's time of Hopper's plain fp32 kernel."""
    (config,) = candidates(family("hopper_sgemm"), HOPPER, desc)
    return family("hopper_sgemm").cost(HOPPER, desc, config)


def test_hopper_s_kernel_is_preferred_where_c_is_large() -> None:
    for n, taken in ((2880, True), (1561 * 2, True), (4096, True), (64, True)):
        assert cublas_is_slower(HOPPER, Gemm(n, n, n).desc) == taken, n
    narrow = Gemm(3520, 11229, 59, trans="NT").desc
    assert cublas_is_slower(HOPPER, narrow), "rows of a narrow C go through shared memory"
    assert sgemm_seconds(narrow) == pytest.approx(sgemm_seconds(Gemm(3520, 11228, 59, trans="NT").desc), rel=0.01)
    assert not cublas_is_slower(HOPPER, Gemm(8191, 129, 1023, trans="NT").desc), "a thin C"


def test_a_slower_clock_and_fewer_multiprocessors_take_longer() -> None:
    for problem in (Gemm(64, 64, 4096), Gemm(1024, 1024, 1024), Gemm(1, 8192, 8192), Gemm(8192, 8192, 64, trans="NT")):
        call = problem.desc
        first = best(H200, call).seconds
        assert best(replace(H200, clock_mhz=990), call).seconds > 1.2 * first or first < 1.1 * cost_model.HOST.two
        assert best(replace(H200, compute_units=66), call).seconds >= first


def test_the_choice_does_not_fall_off_between_the_sizes_measured():
    # one more row must not cost half as much again: by the model's own count, over what the record does not cover
    before = 0.0
    for n in range(192, 2304, 32):
        call = Gemm(n, n, n).desc
        cost = best(H200, call).seconds
        assert math.isfinite(cost) and cost > 0.85 * before, n
        before = cost


def test_short_sums_of_a_small_product_are_cut() -> None:
    # as many slices as it has turns for: those that would fill the device are more than that
    for M, N, K in ((44, 32, 1344), (35, 41, 832)):
        call = Gemm(M, N, K, trans="TN").desc
        assert 1 < own(Gemm(M, N, K, trans="TN")).slices < 60, (M, N, K)
        uncut = min(one.seconds for one in ranked(H200, call) if one.candidate.config.slices == 1)
        assert uncut > 1.15 * best(H200, call).seconds


def test_long_rows_that_no_cache_holds_are_cut_where_few_work_groups_read_them() -> None:
    for length, depth in ((4624, 3970), (7984, 3840)):
        assert own(Gemv(length, depth)).slices > 1, (length, depth)
    assert own(Gemv(32432, 40000)).slices == 1  # waves enough
    assert own(Gemv(2000, 1216)).slices == 1  # in the cache


def test_the_choice_says_why() -> None:
    found = select(H200, Gemm(1024, 1024, 1024).desc)
    assert "work-groups for 132" in found.why and ("cublas", "only kernels of ours were asked for") in found.passed_over
    assert any(name.startswith("tiled") for name, _ in found.passed_over)


def test_classes() -> None:
    named = {
        (1, 9, 9, 1): "vector", (16, 4096, 4096, 1): "skinny", (64, 64, 64, 9): "batched", (128, 128, 65536, 1): "deep",
        (512, 512, 512, 1): "tiny", (1024, 1024, 1024, 1): "small", (4096, 4096, 64, 1): "shallow", (4096, 4096, 4096, 1): "large",
    }  # fmt: skip
    for (M, N, K, batch), name in named.items():
        assert problem_class(Gemm(M, N, K, batch=batch).desc) == name


def on_hopper(M: int, N: int, K: int, trans: str = "NN", batch: int = 1) -> Selection:
    return select(HOPPER, Gemm(M, N, K, trans=trans, batch=batch).desc)


def test_hopper_s_kernel_is_not_chosen_where_it_is_reckoned_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgemm_cost.MODEL, "rate", sgemm_cost.MODEL.rate / 2)
    found = on_hopper(8192, 8192, 8192)
    assert kernel_of(found) == "tiled" and found.passed_over[0][0].startswith("hopper_sgemm")


@pytest.mark.parametrize("precision", ["fp32", "fp32x"])
def test_nothing_is_weighed_twice_for_one_product(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates of plain fp32 are weighed against those of fp32x, and one of either is taken."""
    asked = Counter[tuple[str, str]]()

    def counted(cost: Callable[..., Any]) -> Callable[..., Any]:
        def of(family: KernelFamily, device: Device, desc: Desc, *config: KernelConfig) -> Any:
            asked[family.name, repr(config)] += 1
            return cost(family, device, desc, *config)

        return of

    kinds = {kind for one in families() for kind in type(one).__mro__ if issubclass(kind, KernelFamily)} - {KernelFamily}
    for kind, name in [(kind, name) for kind in kinds for name in ("cost", "weighed") if name in vars(kind)]:
        monkeypatch.setattr(kind, name, counted(getattr(kind, name)))
    ranking.of_family.cache_clear()
    found = select(HOPPER, GemmDesc(64, 500, 3000) if precision == "fp32" else GemmDesc(512, 512, 512), True, "auto")
    assert found.precision == precision and {"tiled", "hopper_inflight"} <= {name for name, _ in asked}
    assert {name for name, times in asked.items() if times > 1} == set()


@pytest.mark.parametrize("name", ["tiled", "tiled_cluster", "hopper_inflight", "hopper_inflight_split_k"])
def test_candidates_weighed_together_have_the_costs_that_each_has_alone(name: str) -> None:
    draw, one, seen = random.Random(0), family(name), 0
    for _ in range(60):
        m, n, k = (round(2 ** draw.uniform(1, 14)) for _ in range(3))
        layout, batch = draw.choice(golden.LAYOUTS), draw.choice((1, 1, 3, 40))
        desc = golden.gemm(m, n, k, layout, batch, pad=draw.choice((0, 0, 1, 2)), align=draw.choice((4, 4, 1, 2)))
        if not one.supports(HOPPER, desc):
            alone = sorted(one.cost(HOPPER, desc, c) for c in candidates(one, HOPPER, desc))
            together = sorted(one.weighed(HOPPER, desc), key=lambda found: found[0])
            assert [seconds for seconds, _ in together] == pytest.approx(alone[:MOST], rel=1e-12), desc
            assert all(one.cost(HOPPER, desc, c) == pytest.approx(seconds, rel=1e-12) for seconds, c in together), desc
            seen += len(alone) > MOST
    assert seen > (20 if name.startswith("tiled") else 2)
