"""Registers of the kernels' tiles: no accumulator goes to memory, in any tile, layout and architecture, by the compiler's word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import golden
from conftest import require
from test_tiled_cluster_on_cpu import TILES
from test_tiled_cluster_on_cpu import config_for as tiled_in_cluster
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.gemm.desc import GemmDesc
from toprung.kernels import group
from toprung.kernels.blocks import BLOCKS, narrowed
from toprung.kernels.hopper_fp32x.config import IN_FLIGHT, Fp32xConfig
from toprung.kernels.hopper_fp32x.cost import WEIGHED
from toprung.kernels.hopper_fp32x.sources import product_source
from toprung.kernels.registry import family
from toprung.kernels.skinny.family import SkinnyConfig, launched
from toprung.kernels.skinny_model import SMALL, TEAMS
from toprung.kernels.tiled_cluster.family import FAMILY as TILED_CLUSTER
from toprung.kernels.tiled_cluster.family import LARGEST
from toprung.kernels.tiled_group import family as tiled_group
from toprung.kernels.tiled_group.family import GroupBlock, group_source
from toprung.lab.sass.machine_code import inspect_source
from toprung.tile import Tile

H200 = golden.devices()["h200-cuda"]
Found = Iterator[tuple[Source, int, int, int | None]]
"""Source, bytes of a thread's memory that it is written with, bytes that may spill, and accesses to such memory that its main loop
may have (None: not looked at, as nothing may spill or only the host's call does)."""


def said(source: Source, arch: str) -> tuple[int, int]:
    """Return what a thread has in memory, in bytes, and registers, by the compiler's log: its listing takes as long again."""
    log = nvrtc.compile_cubin(source, arch).log
    return max(int(n) for n in re.findall(r"(\d+) bytes (?:stack|spill)", log)), max(map(int, re.findall(r"Used (\d+) reg", log)))


def in_flight(config: Fp32xConfig, arch: str) -> Found:
    """A few words where K runs across memory in rows off 16 bytes, and no step reads them again."""
    for trans_a, trans_b, align in ((0, 0, 4), (0, 1, 4), (1, 0, 4), (0, 0, 2), (1, 1, 2), (0, 0, 1), (1, 0, 1), (1, 1, 1)):
        narrow = align < 4 and (trans_a or not trans_b)
        yield product_source(config, bool(trans_a), bool(trans_b), align, align), 2 * config.BN + 112, 32 * bool(narrow), 0


def in_groups(config: Fp32xConfig, arch: str) -> Found:
    """Sizes and addresses are read again behind the sums: they would have no registers. In small blocks a few words spill."""
    for capacity, macros in ((544, {}), (384, {"EPILOGUE": 1, "ACTIVATION": 2})):
        for layout in ((False, False, 4, 4), (True, True, 1, 1)):
            source = product_source(config, *layout, GROUPED=capacity, **macros)
            yield source, 2 * config.BN + 112, 32 * (config.CONSUMERS == 1), 2 * (config.BM == config.BN == 64 and bool(macros))


def in_clusters(tile: Tile, arch: str) -> Found:
    """In clusters of two and of the most it can have, with wide and narrow accesses; a few where the compiler is held to few."""
    asked = next(one.asked for one in BLOCKS if one.tile == tile)
    for n, align in ((1024, 4), (1023, 1)):
        desc = GemmDesc(n, n, n, align_a=align, align_b=align, align_c=align)
        if replace(tile, VA=4, VB=4) not in [replace(one.tile, VA=4, VB=4) for one in narrowed(H200, *desc.widths[:2]).blocks]:
            continue  # a tile for wide accesses alone
        for slices in {2, min(LARGEST, tile.TM or 1)}:
            source = TILED_CLUSTER.source(H200, tiled_in_cluster(H200, desc, tile, slices))
            yield source, 0, 32 if asked else 0 if align == 4 else 8, None


def skinny(of: tuple[str, int], arch: str) -> Found:
    """As launched, with one chain and with several; rows of eight sums and more miss a few of their 128 registers."""
    (kernel, few), made = of, family("skinny")
    most = {8: 132, 16: 20}.get(few, 0) if kernel == "rows" else 0
    for K in (2048, 200_000):
        for trans_a in (False, True):  # the short operand as it is read, and across
            desc = GemmDesc(few, 2048, K, trans_a=trans_a, trans_b=kernel == "rows", align_a=4, align_b=4, align_c=4)
            for at in TEAMS[kernel]:
                if (config := made.at(H200, desc, {**at, "SPLIT_K": 1})) is not None:
                    assert isinstance(config, SkinnyConfig) and config.kernel == kernel
                    yield made.source(H200, launched(H200, desc, config)), 0, most, None


def groups(block: GroupBlock, arch: str) -> Found:
    for trans in ((False, False), (False, True), (True, False), (True, True)):
        for macros in ({}, {"EPILOGUE": 1, "ACTIVATION": 2}):
            capacity = group.PARAMETER_BYTES[1] // (group.member_type(bool(macros)).itemsize + 4) // 16 * 16
            source = group_source(block, *trans, GROUPED=capacity, **macros)
            registers = said(source, arch)[1]
            assert block.resident * block.threads * -(-registers // 8) * 8 <= 65536, "so many blocks are launched as fit"
            yield source, 0, 0, None


RINGS = [one for one in WEIGHED[IN_FLIGHT] if not one.is_alone]
SWEEPS: list[tuple[Callable[[Any, str], Found], list[Any], tuple[str, ...]]] = [
    (in_flight, RINGS, ("sm_90",)),
    (in_groups, RINGS, ("sm_90",)),
    (in_clusters, list(TILES.values()), ("sm_90",)),
    (skinny, [(kernel, few) for kernel in ("rows", "columns") for few in SMALL], ("sm_90",)),
    (groups, list(tiled_group.BLOCKS), ("sm_75", "sm_80", "sm_90")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "of", "arch"),
    [
        pytest.param(sweep, of, arch, id=f"{sweep.__name__} {of} {arch}")
        for sweep, every, archs in SWEEPS for of in every for arch in archs
    ],
)  # fmt: skip
def test_sums_stay_in_registers(sweep: Callable[[Any, str], Found], of: Any, arch: str) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    for source, own, most, in_loop in (every := list(sweep(of, arch))):
        assert said(source, arch)[0] - own <= most, source
        if in_loop is not None:
            loop = inspect_source(source, arch).loop.counts
            assert sum(n for kind, n in loop.items() if kind.startswith(("LDL", "STL"))) <= in_loop, loop
    assert every
