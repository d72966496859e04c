"""Tiles whose slices of K are the blocks of a cluster, by the kernel's own text on a CPU: layouts, edges, strides, β, narrow C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import clusters_on_cpu
import golden
import trial
from clusters_on_cpu import Folder, folder_for
from conftest import require
from hopper_on_cpu import bug
from toprung.backends import nvrtc
from toprung.device import Device
from toprung.dispatch.selection import Candidate, decoded
from toprung.errors import LaunchError
from toprung.gemm.desc import GemmDesc, GemvDesc
from toprung.kernels.base import TileConfig, candidates
from toprung.kernels.blocks import BLOCKS, cluster_bytes, narrowed
from toprung.kernels.cluster import SIZES
from toprung.kernels.cost_model import CLUSTERS, OF_SMS, places
from toprung.kernels.split_k import whole_slices
from toprung.kernels.tiled.family import configured
from toprung.kernels.tiled_cluster.family import FAMILY, LARGEST, RECORDS
from toprung.lab.harness import results
from toprung.lab.sass.machine_code import disassemble
from toprung.tile import Tile

GPUS = golden.devices()
H200 = GPUS["h200-cuda"]
TILES = {str(one.tile).split(" WM")[0]: one.tile for one in BLOCKS if one.chained}
SMALL, WIDE, PAIRS, TALL = TILES["32×32×32 4×4 v4"], TILES["64×64×16 8×8 v4"], TILES["16×16×16 2×2 v2/4"], TILES["64×32×16 4×8 v4"]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return folder_for(tmp_path_factory.getbasetemp(), monkeypatch)


def config_for(device: Device, desc: GemmDesc, tile: Tile, slices: int) -> TileConfig:
    """Return a tile of the table with accesses as wide as the product has them."""
    a, b, _ = desc.widths
    one = next(one for one in narrowed(device, a, b).blocks if replace(one.tile, VA=4, VB=4) == tile)
    found = configured(device, desc, one, 1)
    return replace(found, tile=replace(found.tile, SPLIT_K=slices))


def worst(folder: Folder, tile: Tile, slices: int, *product: Any, **more: Any) -> float:
    """Return the largest error of a product in units of the bound."""
    return clusters_on_cpu.worst(folder, FAMILY, lambda desc: config_for(folder.device, desc, tile, slices), *product, **more)


QUICK = [
    (SMALL, 4, (50, 45, 300), "NN", 0, 0.0),
    (TALL, 3, (70, 37, 291), "TN", 1, 0.5),
    (PAIRS, 2, (17, 33, 130), "NT", 0, -1.0),
]
SLOW = [
    (SMALL, 2, (33, 31, 257), "TT", 3, 1.0),
    (SMALL, 3, (64, 64, 384), "NT", 0, 0.0),
    (WIDE, 8, (66, 65, 509), "NN", 0, 0.0),
    (WIDE, 6, (64, 128, 379), "TT", 4, 2.0),
    (WIDE, 5, (70, 66, 330), "TN", 1, 0.0),
    (WIDE, 7, (20, 200, 445), "NT", 2, 0.0),
    (TALL, 4, (65, 33, 257), "NN", 1, 0.0),
    (TALL, 2, (128, 64, 128), "NT", 0, 0.0),
    (PAIRS, 2, (40, 40, 129), "TN", 1, 0.0),
]


@pytest.mark.parametrize(
    ("tile", "slices", "sizes", "trans", "pad", "beta"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]
)
def test_products(
    folder: Folder, tile: Tile, slices: int, sizes: tuple[int, int, int], trans: str, pad: int, beta: float
) -> None:  # fmt: skip
    assert worst(folder, tile, slices, sizes, trans, pad=pad, beta=beta) < 1


def test_each_text_reads_beta(folder: Folder) -> None:
    assert worst(folder, SMALL, 4, (50, 45, 300), beta_zero=False) < 1, "what is not C was read"
    assert worst(folder, SMALL, 4, (50, 45, 300), beta=0.5, beta_zero=True) < 1


def test_batches(folder: Folder) -> None:
    assert worst(folder, SMALL, 4, (40, 33, 250), "TN", batch=3, beta=0.25) < 1


def test_planted_bugs_are_found(folder: Folder) -> None:
    for place, text in (
        ("sums-are-here", "if (false) "),  # nobody waits for the others' sums
        ("place-of-slice", "0 * "),  # all slices write to one place
        ("first-slice", "~2"),  # one is left out
        ("rows-of-block", "~1 + "),  # each block writes all rows
    ):
        with bug(place, text):
            assert worst(folder, SMALL, 4, (50, 44, 300)) >= 1, place


def test_a_slice_that_would_be_empty_is_refused(folder: Folder) -> None:
    desc = GemmDesc(64, 64, 150)  # five tiles of K: two for each of three blocks
    with pytest.raises(LaunchError, match="3 slices"):
        FAMILY.compile(folder, desc, config_for(folder.device, desc, SMALL, 4))  # type: ignore[arg-type]


# without a GPU, by the compiler and the models


def test_what_is_weighed_has_work_for_each_block() -> None:
    for sizes in ((300, 300, 300), (739, 739, 739), (64, 64, 700), (8191, 129, 1023), (64, 40, 190)):
        desc = GemmDesc(*sizes)
        found = list(candidates(FAMILY, H200, desc))
        assert found
        for config in found:
            tile, slices = config.tile, config.slices
            assert slices in SIZES and slices <= (tile.TM or 0) and whole_slices(desc.K, tile.BK or 1, slices) == slices
            assert not RECORDS[slices].refused(config, H200)
            assert decoded(Candidate(FAMILY, config).encode()).config == config
            assert FAMILY.at(H200, desc, FAMILY.point(config)) == config
            assert 1e-6 < FAMILY.cost(H200, desc, config) < 1e-2
    assert not list(candidates(FAMILY, H200, GemmDesc(8192, 8192, 8192)))  # blocks enough
    assert not list(candidates(FAMILY, H200, GemmDesc(64, 64, 60)))  # nothing to cut


def test_devices_without_clusters_and_vectors_are_refused() -> None:
    desc = GemmDesc(64, 64, 640)
    for name, device in GPUS.items():
        has = device.backend == "cuda" and nvrtc.capability(device.arch) >= (9, 0)
        assert bool(FAMILY.supports(device, desc)) != has, name
    assert FAMILY.supports(H200, GemvDesc(64, 64)) and FAMILY.supports(H200, GemmDesc(64, 1, 640))


def test_what_was_measured_follows_to_other_sizes() -> None:
    measured = GemmDesc(512, 512, 512)
    config = config_for(H200, measured, WIDE, 4)
    assert FAMILY.adapt(H200, measured, config, measured, True) == config
    near = FAMILY.adapt(H200, GemmDesc(620, 640, 640), config, measured, False)
    assert isinstance(near, TileConfig) and near.slices == 3  # more blocks: fewer slices
    for desc, why in (
        (GemmDesc(4096, 4096, 512), "no slices"),
        (GemmDesc(512, 512, 64), "no slices"),
        (GemvDesc(64, 64), "matrices"),
    ):
        found = FAMILY.supports(H200, desc) or FAMILY.adapt(H200, desc, config, measured, False)
        assert isinstance(found, str) and why in found
    for tile in ({}, config.tile.given() | {"SPLIT_K": LARGEST + 1}, replace(config.tile, SPLIT_K=None).given()):
        with pytest.raises(ValueError, match=r"tiled_cluster|tile"):
            decoded({"kernel": FAMILY.name, "tile": tile, "options": dict(config.options)})


def test_verification_has_edges_and_the_same_kernel() -> None:
    for slices in RECORDS:
        config = config_for(H200, GemmDesc(512, 512, 512), WIDE, slices)
        (M, N, K), same = FAMILY.test_problem(GemmDesc(512, 512, 512), config)
        assert same == config and whole_slices(K, WIDE.BK or 1, slices) == slices
        assert M % WIDE.BM and N % WIDE.BN and K % (WIDE.BK or 1)


def test_clusters_that_run_at_once() -> None:
    assert places(2, 1, 132) == 264 and places(1, 8, 132) == 120 and places(4, 4, 132) == 496 and places(8, 4, 132) == 992
    for slices, counts in CLUSTERS.items():
        assert list(counts) == sorted(counts) and all(n * slices <= each * OF_SMS for each, n in enumerate(counts, 1))


def test_the_model_s_table_is_what_was_counted() -> None:
    record = results.read(trial.fixture("h100-clusters.json"))
    found: dict[int, list[int]] = {}
    for row in sorted(record["clusters"], key=lambda row: row["each"]):
        found.setdefault(row["size"], []).append(row["counted"])
    assert {size: tuple(counts) for size, counts in found.items()} == dict(CLUSTERS)
    assert record["environment"]["device"]["compute_units"] == OF_SMS


@pytest.mark.parametrize("slices", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_machine_code(slices: int) -> None:
    """Sums go to other blocks 16 bytes at a time, blocks meet as they begin and once more, and memory is what the record says."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    desc = GemmDesc(512, 512, 512, align_a=4, align_b=4, align_c=4)
    source = FAMILY.source(H200, config_for(H200, desc, WIDE, slices))
    listing = disassemble(nvrtc.compile_cubin(source, "sm_90").code)
    sums = (WIDE.TM or 0) * (WIDE.TN or 0)
    assert source.waits and listing.count(" ST.E.128 ") * 4 == sums and listing.count(" ST.E") * 4 == sums
    assert listing.count("UCGABAR_ARV") == listing.count("UCGABAR_WAIT") == 2
    assert listing.count("MEMBAR") == 1, "only what was sent has to be visible"
    assert source.defines["DYNAMIC_SHARED"] == cluster_bytes(WIDE, slices) <= H200.dynamic_local_bytes
