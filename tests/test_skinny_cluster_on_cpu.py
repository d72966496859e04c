"""Products with a short side whose slices of K are a cluster's blocks, by the kernels' texts on a CPU, and what selects them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import clusters_on_cpu
import golden
from clusters_on_cpu import Folder, folder_for
from conftest import require
from hopper_on_cpu import bug
from toprung.backends import nvrtc
from toprung.device import Device
from toprung.dispatch.selection import Candidate, decoded
from toprung.errors import LaunchError
from toprung.gemm.desc import Desc, GemmDesc, GemvDesc
from toprung.kernels.base import candidates
from toprung.kernels.cluster import LARGEST, SIZES
from toprung.kernels.cost_model import SKINNY
from toprung.kernels.registry import family
from toprung.kernels.skinny.family import HELD, SkinnyConfig, launched
from toprung.kernels.skinny_cluster.family import FAMILY, RECORDS
from toprung.kernels.skinny_model import MOST_UNROLLED, iteration_depth, refused
from toprung.kernels.split_k import whole_slices
from toprung.lab.sass.machine_code import disassemble, inspect_source

GPUS = golden.devices()
H200 = GPUS["h200-cuda"]
Point = dict[str, int]
LANES = {"ITEMS": 64, "TEAM": 32, "TM": 2, "AT_ONCE": 1}
NARROW = {"ITEMS": 32, "TEAM": 8, "TM": 4, "AT_ONCE": 2}
LARGE = {"ITEMS": 128, "TEAM": 64, "TM": 1, "AT_ONCE": 4}  # a team of two sub-groups
FLAT = {"ACROSS": 16, "DN": 4, "TN": 8, "KU": 4}
TALL = {"ACROSS": 8, "DN": 8, "TN": 16, "KU": 8}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return folder_for(tmp_path_factory.getbasetemp(), monkeypatch)


def config_for(device: Device, desc: Desc, at: Point, slices: int) -> SkinnyConfig:
    """Return the configuration of a team in clusters of a given size."""
    found = FAMILY.at(device, desc, {**at, "SPLIT_K": slices})
    assert found is not None and found.slices == slices
    return found


def worst(folder: Folder, at: Point, slices: int, *product: Any, **more: Any) -> float:
    """Return the largest error of a product in units of the bound."""
    return clusters_on_cpu.worst(folder, FAMILY, lambda desc: config_for(folder.device, desc, at, slices), *product, **more)


QUICK = [
    (LANES, 3, (5, 33, 700), "TT", 0, 0.0),
    (LARGE, 2, (15, 1, 2100), "NN", 1, 0.5),
    (FLAT, 4, (3, 70, 259), "NN", 0, -1.0),
    (TALL, 2, (90, 8, 300), "TT", 1, 0.0),
    (FLAT, 3, (9, 70, 259), "NN", 0, 0.5),
]
SLOW = [
    (LANES, 8, (1, 33, 2049), "NT", 0, 1.0),
    (LARGE, 3, (2, 20, 4097), "TT", 3, 0.0),
    (NARROW, 5, (40, 7, 333), "NT", 0, 2.0),
    (NARROW, 2, (8, 65, 256), "NT", 0, 0.0),
    (FLAT, 7, (1, 64, 515), "TN", 2, 0.0),
    (FLAT, 8, (130, 2, 640), "TN", 0, 1.0),
    (FLAT, 2, (130, 6, 700), "TN", 1, 0.0),
    (LANES, 2, (16, 33, 300), "NT", 0, 0.0),
    (NARROW, 2, (4, 65, 256), "NT", 1, 0.0),
    (LARGE, 2, (15, 20, 1100), "TT", 1, 0.0),
    (TALL, 6, (8, 100, 1000), "NN", 1, 0.0),
]


@pytest.mark.parametrize(
    ("at", "slices", "sizes", "trans", "pad", "beta"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]
)
def test_products(
    folder: Folder, at: Point, slices: int, sizes: tuple[int, int, int], trans: str, pad: int, beta: float
) -> None:  # fmt: skip
    assert worst(folder, at, slices, sizes, trans, pad=pad, beta=beta) < 1


def test_batches(folder: Folder) -> None:
    assert worst(folder, LANES, 2, (3, 13, 300), "NT", batch=3, beta=0.25) < 1
    assert worst(folder, FLAT, 3, (3, 40, 150), "NN", batch=2) < 1


@pytest.mark.parametrize(("at", "trans"), [(LANES, "NT"), (FLAT, "NN")])
def test_planted_bugs_are_found(folder: Folder, at: Point, trans: str) -> None:
    for place, text in (
        ("sums-are-here", "if (false) "),  # nobody waits for those who are late
        ("place-of-slice", "0 * "),  # all slices write to one place
        ("first-slice", "~2"),  # one is left out
        ("share-of-block", "0 * "),  # all blocks write the first's
    ):
        with bug(place, text):
            assert worst(folder, at, 4, (3, 14, 1000), trans) >= 1, place


def test_rows_that_are_asked_for_ahead_are_those_that_come(folder: Folder) -> None:
    with bug("asked-ahead", "~1"):
        assert worst(folder, FLAT, 2, (3, 40, 150), "NN") < 1, "a few rows of Y: nothing is asked for ahead"
        assert worst(folder, FLAT, 2, (7, 40, 150), "NN") >= 1


def test_lanes_that_exchange_sums_end_with_each_of_them(folder: Folder) -> None:
    bugs = (
        ("half-kept", "0 && ", (LANES, NARROW)),
        ("half-sent", "!", (LANES, NARROW)),
        ("first-of-lanes", "~LANES", (LANES, NARROW)),
        ("other-lane", "lane + 0 * ", (NARROW,)),  # teams smaller than a sub-group
    )
    for place, text, teams in bugs:
        with bug(place, text):
            for at in teams:
                assert worst(folder, at, 2, (2, 40, 600), "NT") >= 1, (place, at)


def test_lanes_exchange_halves_of_a_power_of_two(folder: Folder) -> None:
    desc = GemmDesc(2, 64, 640, trans_b=True)
    assert FAMILY.at(folder.device, desc, {**LANES, "TM": 4, "SPLIT_K": 2})
    assert FAMILY.at(folder.device, desc, {**LANES, "TM": 3, "SPLIT_K": 2}) is None


def test_a_vector_cut_by_the_end_that_no_lane_takes_is_found(folder: Folder) -> None:
    with bug("cut-vector", "false && "):
        assert worst(folder, LANES, 2, (1, 14, 703), "NT") < 1  # one float an access: no vector is cut
        assert worst(folder, LANES, 2, (1, 14, 702), "NT", pad=2) >= 1


def test_a_slice_that_would_be_empty_is_refused(folder: Folder) -> None:
    desc = GemmDesc(1, 64, 640, trans_b=True)
    config = config_for(folder.device, desc, LANES, 4)
    short = GemmDesc(1, 64, 160, trans_b=True)  # five pieces of K: two for each of three blocks
    with pytest.raises(LaunchError, match="3 slices"):
        FAMILY.compile(folder, short, config)  # type: ignore[arg-type]


# without a GPU, by the compiler and the models


def wide(desc: GemmDesc) -> GemmDesc:
    """Return the product with operands on 16 bytes."""
    return replace(desc, align_a=4, align_b=4, align_c=4)


def test_what_is_weighed_has_work_for_each_block() -> None:
    for desc in (
        wide(GemmDesc(1, 2048, 2048, trans_b=True)), wide(GemmDesc(1, 2048, 2048)), GemmDesc(7, 999, 3001), GemvDesc(1024, 4096),
        GemvDesc(20_000, 100, trans=True), wide(GemmDesc(512, 16, 1024, trans_b=True)),
    ):  # fmt: skip
        found = list(candidates(FAMILY, H200, desc))
        assert found
        for config in found:
            tile, slices = config.tile, config.slices
            assert slices in SIZES and whole_slices(desc.skinny.depth, iteration_depth(tile), slices) == slices
            assert not RECORDS[config.kernel, slices].refused(config, H200)
            assert decoded(Candidate(FAMILY, config).encode()).config == config
            assert FAMILY.at(H200, desc, FAMILY.point(config)) == config
            assert 1e-6 < FAMILY.cost(H200, desc, config) < 1e-3
        for one in (FAMILY, family("skinny")):  # weighed together in one table
            assert all(one.cost(H200, desc, c) == pytest.approx(s, rel=1e-12) for s, c in one.weighed(H200, desc))
    assert not list(candidates(FAMILY, H200, GemvDesc(600_000, 4096)))  # blocks enough
    assert not list(candidates(FAMILY, H200, GemvDesc(64, 60)))  # nothing to cut
    assert not list(candidates(FAMILY, H200, GemmDesc(512, 512, 512)))  # no short side


def test_a_few_long_rows_are_cut_without_a_second_launch() -> None:
    for desc in (GemvDesc(400, 4096), wide(GemmDesc(1, 1024, 2048)), GemvDesc(1024, 1408, trans=True)):
        ours = min(FAMILY.cost(H200, desc, config) for config in candidates(FAMILY, H200, desc))
        others = family("skinny")
        assert ours < 0.6 * min(others.cost(H200, desc, c) for c in candidates(others, H200, desc) if c.slices > 1)  # type: ignore[attr-defined]
    assert all(0 < model.meeting < model.second for model in SKINNY.values())


def test_devices_without_clusters_and_wide_products_are_refused() -> None:
    for name, device in GPUS.items():
        has = device.backend == "cuda" and nvrtc.capability(device.arch) >= (9, 0)
        assert bool(FAMILY.supports(device, GemvDesc(64, 640))) != has, name
    assert FAMILY.supports(H200, GemmDesc(64, 64, 640)) and FAMILY.supports(H200, GemvDesc(64, 0))


def test_what_was_measured_follows_to_other_sizes() -> None:
    measured = GemvDesc(512, 4096)
    config = config_for(H200, measured, LANES, 4)
    assert FAMILY.adapt(H200, measured, config, measured, True) == config
    near = FAMILY.adapt(H200, GemvDesc(700, 4096), config, measured, False)
    assert isinstance(near, SkinnyConfig) and near.slices == 3  # more blocks: fewer slices
    for desc, why in (
        (GemvDesc(4096, 512), "no slices"),
        (GemvDesc(512, 64), "no slices"),
        (GemvDesc(512, 4096, trans=True), "does not compute"),
        (GemmDesc(512, 512, 512), "no side"),
    ):
        found = FAMILY.supports(H200, desc) or FAMILY.adapt(H200, desc, config, measured, False)
        assert isinstance(found, str) and why in found, found
    for tile in (
        {},
        config.tile.given() | {"SPLIT_K": LARGEST + 1},
        {k: v for k, v in config.tile.given().items() if k != "SPLIT_K"},
    ):
        with pytest.raises(ValueError, match=r"skinny|SPLIT_K"):
            decoded({"kernel": FAMILY.name, "tile": tile, "options": dict(config.options)})


def test_verification_has_edges_and_the_same_kernel() -> None:
    for desc, at in (
        (GemvDesc(512, 8192, align_a=4, align_x=4), LANES | {"ITEMS": 128}),
        (GemvDesc(8192, 512, trans=True, align_a=4), FLAT),
    ):
        for slices in range(2, LARGEST + 1):
            config = config_for(H200, desc, at, slices)
            (M, N, K), same = FAMILY.test_problem(desc, config)
            assert same == config and whole_slices(K, iteration_depth(config.tile), slices) == slices
            assert max(M, N) % config.tile.BM and K % iteration_depth(config.tile)


def test_teams_that_there_are_not() -> None:
    rows, columns = GemvDesc(64, 640).skinny, GemvDesc(64, 640, trans=True).skinny
    assert not refused(rows, LANES) and not refused(columns, FLAT)
    assert "whole teams" in refused(rows, LANES | {"TEAM": 128})
    assert "whole pieces" in refused(columns, FLAT | {"KU": 16})
    assert f"{MOST_UNROLLED * 2} long" in refused(rows, LANES | {"TM": 8, "AT_ONCE": 16})
    assert FAMILY.at(H200, GemvDesc(64, 6400), {**LANES, "TEAM": 128, "SPLIT_K": 2}) is None


def loads_together(desc: GemmDesc, at: Point) -> tuple[int, int]:
    """Return the most loads of 16 bytes that have no multiply-add between them, as launched and as the compiler likes."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    found, skinny = [], family("skinny")
    plain = skinny.at(H200, desc, {**at, "SPLIT_K": 1})
    assert isinstance(plain, SkinnyConfig)
    for config in (launched(H200, desc, plain), plain):
        most = run = 0
        for line in disassemble(nvrtc.compile_cubin(skinny.source(H200, config), "sm_90").code).splitlines():
            run = 0 if " FFMA " in line else run + ("LDG.E.128" in line)
            most = max(most, run)
        found.append(most)
    return found[0], found[1]


def test_loads_of_an_iteration_come_together() -> None:
    """Left alone, the compiler waits for one before it asks for the next, to save registers."""
    room = dict(launched(H200, GemvDesc(512, 2048), config_for(H200, GemvDesc(512, 2048), LANES, 2)).options)["RESIDENT"]
    assert room == HELD // LANES["ITEMS"]
    together, alone = loads_together(wide(GemmDesc(1, 2048, 2048)), {"ACROSS": 8, "DN": 32, "TN": 16, "KU": 8})
    assert together >= 8 > alone
    together, alone = loads_together(wide(GemmDesc(1, 2048, 2048, trans_b=True)), {"ITEMS": 256, "TEAM": 32, "TM": 1, "AT_ONCE": 4})
    assert together >= 8 > alone  # four of either operand


@pytest.mark.parametrize("at", [LANES, pytest.param(FLAT, marks=pytest.mark.slow)])
def test_machine_code(at: Point) -> None:
    """Sums go to other blocks, which meet as they begin and once more; nothing spills."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    desc = wide(GemmDesc(2, 2048, 2048, trans_b="TEAM" in at))
    source = FAMILY.source(H200, launched(H200, desc, config_for(H200, desc, at, 4)))
    listing = disassemble(nvrtc.compile_cubin(source, "sm_90").code)
    assert source.waits and listing.count("UCGABAR_ARV") == listing.count("UCGABAR_WAIT") == 2
    assert listing.count("MEMBAR") == 1, "only what was sent has to be visible"
    assert not inspect_source(source, "sm_90").local_bytes
