"""The choice against what was measured: each problem of results/nvidia-h200/tiles.json, whose record holds every candidate's time.

No device is needed. A benchmark of new tiles (benchmarks/tiles.py) replaces the record, and the tables in blas/tiles.py follow.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toprung import hopper_fp32
from toprung.blas import choose as choosing
from toprung.blas import expected, tiles
from toprung.blas.choice import FFMA, Choice
from toprung.blas.choose import by_model, choose, problem_class
from toprung.blas.competitor import call_of
from toprung.blas.ffma import ffma_seconds
from toprung.blas.kernel import kernel
from toprung.blas.problems import problem_of
from toprung.blas.short import Skinny
from toprung.device import Device
from toprung.report.tune_table import Drawn, device_of, drawn, now
from toprung.results import read
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.tile import Tile
from toprung.tune.trial import choice_of

RECORD = Path(__file__).parents[1] / "results" / "nvidia-h200" / "tiles.json"
SWITCHES = ("ORDER", "RESIDENT", "AHEAD", "GROUP_M", "SMALL")
ROUTES = RECORD.with_name("routes.json")
LEAST, LEAST_MEAN = 0.86, 0.97

Trial = dict[str, Any]

# What the record's candidates are chosen from: it is older than Hopper's plain fp32 kernel and has no time of it, so that
# replays are of a device like an H200 that has not what that kernel needs.
H200 = Device(
    "cuda:0", "cuda", "NVIDIA H200", "NVIDIA", "", "", "gpu", 132, 1980, 128, 49152, 140 << 30, 140 << 30, 1024, (1024, 1024, 64),
    256, (1, 2, 4), 32, "sm_89",
)  # fmt: skip


HOPPER = replace(H200, arch="sm_90")


@functools.cache
def problems() -> dict[str, tuple[Gemm, list[Trial], float]]:
    """Name → problem, what was timed, fastest first, and the vendor library's time."""
    found = {}
    for entry in read(RECORD)["problems"]:
        values = {k: v for k, v in entry["problem"].items() if k != "routine"}
        problem = Gemm(**values)
        vendor = next(statistics.median(row["seconds"]) for row in entry["final"] if row["who"] == "vendor")
        found[str(problem)] = problem, entry["quick"], vendor
    return found


def seconds(choice: Choice, timed: list[Trial]) -> float | None:
    """What the record says of a choice: its own time, or, where its switches were not tried, the slowest of its tile's."""
    assert choice.tile is not None
    same = [t for t in timed if t["kernel"] == choice.kernel and t["tile"] == choice.tile.given()]
    wanted = dict(choice.options)
    own = [t for t in same if all(t["options"].get(s) == wanted.get(s) for s in SWITCHES)]
    return max((t["seconds"] for t in own or same), default=None)


def share(problem: Gemm, timed: list[Trial]) -> float | None:
    """The fastest candidate's time as a share of the chosen one's; None for a choice that nobody timed."""
    found = seconds(by_model(H200, call_of(problem)), timed)
    return timed[0]["seconds"] / found if found else None


def known_shares() -> dict[str, float]:
    """Of the problems whose choice was timed."""
    return {name: found for name, one in problems().items() if (found := share(*one[:2])) is not None}


def test_the_choice_is_near_the_best_that_was_measured():
    shares = known_shares()
    assert len(shares) >= 17
    bad = {name: f"{s:.3f} {by_model(H200, call_of(problems()[name][0]))}" for name, s in shares.items() if not s >= LEAST}
    assert not bad
    assert statistics.geometric_mean(shares.values()) >= LEAST_MEAN


def test_a_worse_table_is_noticed(monkeypatch: pytest.MonkeyPatch):
    only = tuple(c for c in tiles.GPU if (c.tile.BM, c.tile.BN, c.tile.BK) == (64, 64, 16))
    monkeypatch.setattr(tiles, "GPU", only)
    assert min(known_shares().values()) < LEAST


@functools.cache
def held() -> tuple[Device, list[Drawn]]:
    """The drawn shapes that the model was not fitted to, and where they were measured."""
    record = read(ROUTES)
    return device_of(record), [one for one in drawn(record) if one.held]


def kept(shares: list[float | None], within: float = 1.05) -> float:
    """How many are within that of the best, of those that were measured."""
    known = [s for s in shares if s is not None]
    return sum(s <= within for s in known) / len(known)


def test_what_runs_is_near_the_best_on_shapes_it_was_not_fitted_to() -> None:
    device, shapes = held()
    shares = [one.shares(now(device, one.problem)) for one in shapes]
    known = [s for s in shares if s is not None]
    assert len(shapes) >= 80 and len(known) >= 0.8 * len(shapes)
    assert kept(shares) >= 0.8 and kept(shares, 1.1) >= 0.9 and max(known) <= 1.3
    before = kept([one.shares(one.timed[0][0]) for one in shapes])
    theirs = kept([one.shares(Choice("cublas", None)) for one in shapes])
    assert kept(shares) >= max(before, theirs) + 0.25


def test_large_tiles_alone_are_noticed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    device, shapes = held()
    all_tiles = kept([one.shares(now(device, one.problem)) for one in shapes])
    monkeypatch.setattr(tiles, "GPU", tuple(c for c in tiles.GPU if c.tile.BM * c.tile.BN >= 64 * 64))
    assert kept([one.shares(now(device, one.problem)) for one in shapes]) < all_tiles - 0.08


def test_cublas_is_told_from_ours_where_they_differ() -> None:
    device, shapes = held()
    sides: dict[bool, list[bool]] = {True: [], False: []}
    for one in shapes:
        theirs = one.seconds(Choice("cublas", None))
        ours = min(s for c, s in one.timed if c.kernel != "cublas")
        if theirs and not 1 / 1.08 <= theirs / ours <= 1.08:
            sides[theirs > ours].append((choosing.cublas_ratio(device, call_of(one.problem)) >= 1) == (theirs > ours))
    assert len(sides[True]) >= 50 and statistics.mean(sides[True]) >= 0.95
    assert len(sides[False]) >= 5 and statistics.mean(sides[False]) >= 0.5


def cublas_errors() -> list[float]:
    """The model's times of cuBLAS over the record's, of batches with a short side that take longer than the host does."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        theirs, call = one.seconds(Choice("cublas", None)), call_of(one.problem)
        if theirs and theirs > 20e-6 and isinstance(one.problem, Gemm) and one.problem.batch > 1 and min(call.M, call.N) <= 32:
            found.append(choosing.cublas_ratio(device, call) * choosing.ways(device, call)[0].seconds / theirs)
    return found


def test_cublas_has_narrow_tiles_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cublas_errors()
    assert len(known) >= 4 and statistics.median(known) <= 1.1
    monkeypatch.setattr(tiles, "CUBLAS_SIDE_OF_BATCHES", tiles.CUBLAS_SIDE)
    assert statistics.median(cublas_errors()) > 1.3


def test_few_work_items_have_more_of_a_multiprocessor_each() -> None:
    # a work-group of half as many work-items, which has a multiprocessor to itself, does not take as long as the whole one
    for problem in (Gemm(561, 41, 380, trans="NT"), Gemm(304, 16, 219)):  # two of the record's
        call = call_of(problem)
        chosen = by_model(H200, call).tile
        assert chosen and (chosen.BM, chosen.BN) == (16, 16), problem
        half, whole = (
            next(one for one in tiles.candidates(H200, call) if (one.tile.BM, one.tile.BN, one.tile.BK) == size)
            for size in ((16, 16, 32), (16, 32, 32))
        )
        assert math.prod(tiles.tile_grid(call, half.tile)) <= H200.compute_units
        assert tiles.clocks(H200, call, half, 1) < 0.97 * tiles.clocks(H200, call, whole, 1)


def last_waves() -> list[float]:
    """The model's times over the record's where three work-groups run at once and about four come to a multiprocessor."""
    found = []
    for problem, timed, _ in problems().values():
        call = call_of(problem)
        for one in timed:
            slices = one["tile"].get("SPLIT_K", 1)
            like = tiles.candidate_like(Tile(**one["tile"])) if one["kernel"] == "gemm" else None
            if like and like.resident == 3:
                each = math.prod(tiles.tile_grid(call, like.tile)) * call.batch * slices / H200.compute_units
                if 3.4 < each <= 4:
                    found.append(tiles.clocks(H200, call, like, slices) / expected.hz(H200) / one["seconds"])
    return found


def test_what_is_left_after_a_wave_is_not_dealt_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    known = last_waves()
    assert len(known) >= 10 and 0.93 <= statistics.median(known) <= 1.07
    monkeypatch.setattr(expected, "UNEVEN", 0.0)
    assert statistics.median(last_waves()) < 0.9


def rows_of_scattered_vectors(shorts: Any = expected.SHORT) -> list[float]:
    """The model's times over the record's where ``rows`` reads the short operand from the same banks, or nearly so."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        call = call_of(one.problem)
        if not choosing.is_skinny(call):
            continue
        s = Skinny.of(call)
        scattered = [
            (c, x) for c, x in one.timed if c.kernel == "rows" and c.tile and c.tile.VB == 1 and c.slices == 1 and x > 11e-6
        ]
        for choice, seconds in scattered:
            tile, small = choice.tile, dict(choice.options)["SMALL"]
            assert tile
            if tile.DN == expected.BANKS and (tile.VA or 1) * s.on % expected.BANKS == 0:
                units = device.compute_units
                clocks = expected.short_side("rows", tile, s.length, s.few, small, s.depth, s.on, call.batch, 1, units, shorts)
                found.append(clocks / expected.hz(device) / seconds)
    return found


def test_elements_of_the_short_operand_that_lie_in_one_bank_are_read_one_after_the_other() -> None:
    known = rows_of_scattered_vectors()
    assert len(known) >= 10 and 0.8 <= statistics.median(known) <= 1.15
    at_once = {"rows": replace(expected.SHORT["rows"], once=0.0)}
    assert statistics.median(rows_of_scattered_vectors(at_once)) < 0.6


def test_narrow_rows_are_read_for_several_sums_by_few_work_items() -> None:
    # a kernel for one row at a time reads the short operand again for each: its first cache is the limit, not memory
    for M, N, K, trans in ((3, 3808, 5545, "TT"), (5504, 3, 1247, "NT")):
        found = by_model(H200, call_of(Gemm(M, N, K, trans=trans)))
        assert found.tile and found.tile.TM == 4 and found.slices > 1


@functools.cache
def checks() -> list[dict[str, Any]]:
    """The records of what was checked on shapes drawn from four seeds."""
    return [read(RECORD.with_name(f"tune-check{seed}.json")) for seed in ("-seed1", "", "-seed3", "-seed4")]


def uncut_rows_beside_cut_ones() -> list[float]:
    """Logarithms of the model's times over the checks', of uncut rows over those of the same in two slices, from 300 MB on."""
    found = []
    for record in checks():
        device = device_of(record)
        for shape in record["shapes"]:
            problem, timed = problem_of(shape["problem"]), dict[Tile, float]()
            for one in shape["measured"]:
                choice = choice_of(one)
                if choice.kernel == "rows" and choice.tile and one["seconds"] and one["status"] == "right":
                    timed[choice.tile] = statistics.median(one["seconds"])
            if isinstance(problem, Gemv) and 4 * problem.M * problem.N > 300e6:
                s = Skinny.of(call_of(problem))
                for tile, seconds in timed.items():
                    if tile.SPLIT_K is None and (cut := replace(tile, SPLIT_K=2)) in timed:
                        ours, theirs = (
                            expected.short_side("rows", tile, s.length, 1, 1, s.depth, s.on, 1, n, device.compute_units)
                            for n in (1, 2)
                        )
                        found.append(math.log(ours / theirs / (seconds / timed[cut])))
    return found


def test_a_few_rows_that_are_left_take_a_wave_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # 10.1 work-groups for each multiprocessor take longer than twice five; with four at a time they would not
    known = uncut_rows_beside_cut_ones()
    assert len(known) >= 12 and statistics.mean(map(abs, known)) <= 0.045
    monkeypatch.setattr(expected, "REGISTERS", 4 * 48 * 256)
    assert statistics.mean(map(abs, uncut_rows_beside_cut_ones())) > 0.06


def test_the_second_pass_is_counted_as_it_is_launched() -> None:
    tile = kernel("add").tile_for(H200)
    assert (expected.ADDERS, tile.work_items % expected.ADDERS) == (tile.BM, 0)


def sums_of_odd_rows(p: expected.Product = expected.PRODUCT) -> list[float]:
    """The model's times over the record's where many slices of rows that do not lie on 16 bytes, 2 MB and more, are added."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        call = call_of(one.problem)
        for choice, seconds in one.timed:
            like = tiles.candidate_like(choice.tile) if choice.kernel == "gemm" and choice.tile else None
            if like and choice.tile and call.N % 2 and choice.slices > 4 and 2e6 < 4 * call.M * call.N * choice.slices < 2e7:
                clocks = expected.product(
                    call, choice.tile, like.efficiency, like.resident, choice.slices, 1, 1, device.compute_units, 128, p
                )
                found.append(clocks / expected.hz(device) / seconds)
    return found


def test_adding_parts_of_odd_rows_takes_as_long_as_finding_where_they_belong() -> None:
    then = replace(expected.PRODUCT, adding=1731.0)  # the record is of a text that divided numbers of 64 bits
    assert expected.PRODUCT.adding < then.adding
    known, without = sums_of_odd_rows(then), sums_of_odd_rows(replace(then, adding=0.0))
    assert len(known) >= 20 and 0.93 <= statistics.median(known) <= 1.07
    assert statistics.mean(abs(math.log(x)) for x in known) < 0.85 * statistics.mean(abs(math.log(x)) for x in without)


def cublas_with_few() -> list[float]:
    """The model's times of cuBLAS over the record's, of products with a side of two to four that take longer than the host."""
    record = read(ROUTES)
    device, found = device_of(record), []
    for one in drawn(record):
        theirs, call = one.seconds(Choice("cublas", None)), call_of(one.problem)
        if theirs and theirs > 20e-6 and isinstance(one.problem, Gemm) and 1 < min(call.M, call.N) <= choosing.CUBLAS_FEW:
            found.append(choosing.cublas_ratio(device, call) * choosing.ways(device, call)[0].seconds / theirs)
    return found


def test_cublas_is_not_made_for_a_side_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.7 < statistics.median(cublas_with_few()) <= 1.05
    monkeypatch.setattr(choosing, "CUBLAS_SHORT", 1.0)
    assert statistics.median(cublas_with_few()) < 0.7


def cublas_with_deep(trans: str, sides: range) -> float:
    """The median of the model's times of cuBLAS over the records', of deep products with such a shorter side, from 20 µs on."""
    theirs = [(one.problem, one.seconds(Choice("cublas", None))) for one in drawn(read(ROUTES))]
    for record in checks():
        for shape in record["shapes"]:
            timed = [one["seconds"] for one in shape["measured"] if one["kernel"] == "cublas" and one["status"] == "right"]
            theirs += [(problem_of(shape["problem"]), statistics.median(s) if s else None) for s in timed]
    found = []
    for problem, seconds in theirs:
        mine = isinstance(problem, Gemm) and problem.batch == 1 and min(problem.M, problem.N) in sides
        if mine and trans in ("", problem.trans) and seconds and seconds > 20e-6 and problem.K >= 8 * max(problem.M, problem.N):
            call = call_of(problem)
            found.append(choosing.cublas_ratio(HOPPER, call) * choosing.ways(HOPPER, call)[0].seconds / seconds)
    assert len(found) >= 9
    return statistics.median(found)


def test_cublas_cuts_sums_of_wide_tiles_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cublas_with_deep("", range(17, 64)) >= 0.86
    monkeypatch.setattr(tiles, "CUBLAS_CUT", 0)
    assert cublas_with_deep("", range(17, 64)) < 0.84


def test_operands_along_k_cost_cublas_less_than_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = range(64, 4096)
    assert cublas_with_deep("NT", sides) < 1.04 * cublas_with_deep("NN", sides)
    monkeypatch.setattr(expected, "THEIRS", expected.PRODUCT)
    assert cublas_with_deep("NT", sides) > 1.04 * cublas_with_deep("NN", sides)


def test_hopper_s_kernel_is_preferred_where_c_is_written_wide() -> None:
    for n, taken in ((2880, True), (1561 * 2, True), (4096, True), (64, True)):
        assert bool(choosing.preferred(HOPPER, call_of(Gemm(n, n, n)))) == taken, n
    narrow = call_of(Gemm(3520, 11229, 59, trans="NT"))
    assert not choosing.preferred(HOPPER, narrow)
    assert ffma_seconds(HOPPER, narrow) > 1.5 * ffma_seconds(HOPPER, call_of(Gemm(3520, 11228, 59, trans="NT")))


def test_a_slower_clock_and_fewer_multiprocessors_take_longer() -> None:
    for problem in (Gemm(64, 64, 4096), Gemm(1024, 1024, 1024), Gemm(1, 8192, 8192), Gemm(8192, 8192, 64, trans="NT")):
        call = call_of(problem)
        first = choosing.ways(H200, call)[0].seconds
        assert choosing.ways(replace(H200, clock_mhz=990), call)[0].seconds > 1.2 * first or first < expected.HOST.two
        assert choosing.ways(replace(H200, compute_units=66), call)[0].seconds >= first


def test_the_choice_does_not_fall_off_between_the_sizes_measured():
    # one more row must not cost half as much again: by the model's own count, over what the record does not cover
    before = 0.0
    for n in range(192, 2304, 32):
        call = call_of(Gemm(n, n, n))
        cost = choosing.ways(H200, call)[0].seconds
        assert math.isfinite(cost) and cost > 0.85 * before, n
        before = cost


def on_h200(M: int, N: int, K: int, trans: str = "NN", batch: int = 1) -> Choice:
    return choose(H200, call_of(Gemm(M, N, K, trans=trans, batch=batch)))


def test_the_choice_fits_the_shape() -> None:
    assert (large := by_model(H200, call_of(Gemm(8192, 8192, 8192))).tile) and large.BM * large.BN >= 128 * 128
    assert on_h200(128, 128, 65536).slices >= 64
    assert on_h200(1, 8192, 8192).kernel == "columns" and on_h200(1, 8192, 8192, "NT").kernel == "rows"
    assert on_h200(1, 1, 100_000).kernel == "rows" and on_h200(65536, 4, 8).kernel == "gemm"
    assert on_h200(2, 4096, 4096).kernel == "columns" and on_h200(4096, 2, 4096).kernel == "rows"
    assert on_h200(16, 512, 128).kernel == on_h200(512, 16, 128).kernel == "gemm"  # small tiles are faster with as many sums
    for n in (256, 512, 1024):  # enough work-groups for the device, by smaller tiles or by cutting sums
        small = on_h200(n, n, n)
        assert small.tile and -(-n // small.tile.BM) * -(-n // small.tile.BN) * small.slices >= 64
    many = on_h200(64, 64, 64, batch=10_000)
    assert many.kernel == "gemm" and many.slices == 1 and many.tile and many.tile.BM <= 64
    assert (odd := on_h200(4095, 4097, 4099).tile) and (odd.VA, odd.VB) == (1, 1)
    assert dict(on_h200(60000, 60000, 32).options)["INDEX32"] == 0


def test_short_sums_of_a_small_product_are_cut() -> None:
    # as many slices as it has turns for: those that would fill the device are more than that
    for M, N, K in ((44, 32, 1344), (35, 41, 832)):
        call = call_of(Gemm(M, N, K, trans="TN"))
        found = choosing.by_model(H200, call)
        assert 1 < found.slices < 60, (M, N, K)
        uncut = min(way.seconds for way in choosing.ways(H200, call) if way.slices == 1)
        assert uncut > 1.15 * choosing.ways(H200, call)[0].seconds


def test_long_rows_that_no_cache_holds_are_cut_where_few_work_groups_read_them() -> None:
    for length, depth in ((4624, 3970), (7984, 3840)):
        assert by_model(H200, call_of(Gemv(length, depth))).slices > 1, (length, depth)
    assert by_model(H200, call_of(Gemv(32432, 40000))).slices == 1  # waves enough
    assert by_model(H200, call_of(Gemv(2000, 1216))).slices == 1  # in the cache


def test_the_choice_says_why() -> None:
    choice = on_h200(1024, 1024, 1024)
    assert "work-groups for 132" in choice.why and ("cublas", "only kernels of ours were asked for") in choice.passed_over
    assert any(name.startswith("blas/gemm") for name, _ in choice.passed_over)


def test_classes() -> None:
    named = {
        (1, 9, 9, 1): "vector", (16, 4096, 4096, 1): "skinny", (64, 64, 64, 9): "batched", (128, 128, 65536, 1): "deep",
        (512, 512, 512, 1): "tiny", (1024, 1024, 1024, 1): "small", (4096, 4096, 64, 1): "shallow", (4096, 4096, 4096, 1): "large",
    }  # fmt: skip
    for (M, N, K, batch), name in named.items():
        assert problem_class(call_of(Gemm(M, N, K, batch=batch))) == name


def test_hopper_takes_large_products_with_its_own_kernel() -> None:
    for trans in ("NN", "NT", "TN", "TT"):
        choice = choose(HOPPER, call_of(Gemm(8192, 8192, 8192, trans=trans)))
        assert choice.kernel == FFMA and choice.tile and choice.passed_over[0][0].startswith("blas/gemm")
        assert ("lays out" in choice.why) == (trans != "TN")
    wide = choose(HOPPER, call_of(Gemm(64, 65536, 4096))).tile
    high = choose(HOPPER, call_of(Gemm(65536, 64, 4096, trans="TN"))).tile
    assert wide and high and (wide.BM, wide.BN, high.BM, high.BN) == (64, 512, 512, 64)
    for n in (64, 512):
        assert choose(HOPPER, call_of(Gemm(n, n, n))).kernel == "gemm"
    assert choose(HOPPER, call_of(Gemm(1024, 1024, 64, batch=16))).kernel == "gemm"  # it has no batches


def test_hopper_s_kernel_is_not_chosen_where_it_is_reckoned_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_fp32.cost, "RATE", hopper_fp32.cost.RATE / 2)
    choice = choose(HOPPER, call_of(Gemm(8192, 8192, 8192)))
    assert choice.kernel == "gemm" and choice.passed_over[0][0] == "hopper_fp32/ffma"
