"""Tiled: the tunable block kernel, for every layout and shape of product; sums may be split over K."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from toprung.backends.base import Session
from toprung.backends.plan import A, B, C, First, Plan
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.gemm.desc import Desc, GemmDesc, widest
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import blocks
from toprung.kernels.base import MOST, TEST_EDGE, TEST_SLICES, Axes, Launches, Point, TileConfig
from toprung.kernels.blocks import Block, block_like, fitted, split_k_factors, tile_grid
from toprung.kernels.cost_model import block_count
from toprung.kernels.helpers import ADD
from toprung.kernels.launch import MOST_GROUPS, block_record, chain_lengths, direct, in_chains, longs, summed, uints
from toprung.kernels.record import LibraryKernel, RecordFamily
from toprung.kernels.split_k import adapted_slices, slice_depth, whole_slices, with_slices
from toprung.kernels.tiled.record import ON_CPU, RECORD, SEARCHED, SEARCHED_BLOCKS, SIZES
from toprung.tile import Tile

CPU_DEEP = 1024
"""K from which on sums are split on a CPU that blocks of C leave partly idle."""


class Tiled(RecordFamily[TileConfig]):
    """The tunable block kernel.

    Attributes
    ----------
    meet : True if slices of K are blocks of a cluster, which adds them up; else a second launch does
    """

    meet: ClassVar[bool] = False
    name = "tiled"
    records: tuple[LibraryKernel, ...] = (RECORD, ADD)
    ranked = predicts = True

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector:
            return "it multiplies matrices"
        return "there is nothing to multiply" if desc.is_empty else ""

    def weighed(self, device: Device, desc: GemmDesc, most: int = MOST) -> Iterable[tuple[float, TileConfig]]:
        # each block of the table in each number of K slices; on a CPU the kernel's own tiles
        if min(desc.M, desc.N) == 1:  # a vector: most of every tile would be empty
            return []
        if device.kind == "gpu":
            return all_configured(device, desc, blocks.weigh(device, desc, self.meet, most), self.meet)
        a, b, _ = desc.widths
        legal = [t for t in (replace(t, VA=a, VB=b) for t in RECORD.tiles["cpu"]) if RECORD.allows(t, (), device)]
        cut = [configured(device, desc, Block(t, 1.0, ahead=0), _cpu_slices(device, desc, t)) for t in legal]
        return [(self.cost(device, desc, config), config) for config in cut]

    def cost(self, device: Device, desc: GemmDesc, config: TileConfig) -> float:
        # the block model's seconds; infinity for a tile that is not in its table
        if device.kind != "gpu":
            return blocks.cpu_work(device, desc, config.tile, config.slices) / blocks.CPU_RATE
        like = block_like(config.tile)
        if like is None:
            return float("inf")
        regrouped, slices = is_regrouped(config), config.slices
        pieces = chain_lengths(desc.K, blocks.longest_launch(config.options) * slices)

        def predicted(piece: GemmDesc) -> float:
            return blocks.block_seconds(device, piece, like, config.tile, slices, regrouped, self.meet)

        if len(pieces) == 1:
            return predicted(desc)  # the same product keeps what it knows of itself
        return sum(pieces.count(depth) * predicted(replace(desc, K=depth)) for depth in dict.fromkeys(pieces))

    def reason(self, device: Device, desc: Desc, config: TileConfig) -> str:
        groups = block_count(desc, config.tile) * config.slices
        why = f"least by the cost model: {groups} work-groups for {device.compute_units} compute units"
        return why + (f", sums split over K into {config.slices} to have that many" if config.slices > 1 else "")

    def compile(self, session: Session, desc: GemmDesc, config: TileConfig, epilogue: Epilogue | None = None) -> Launches:
        longest, record = blocks.longest_launch(config.options) * config.slices, self.record(config)
        return in_chains(session, desc, longest, lambda piece: _plan(session, piece, record, config, self.meet))

    def adapt(self, device: Device, desc: GemmDesc, config: TileConfig, measured: Desc, exact: bool) -> TileConfig | str:
        tile = config.tile
        if reason := blocks.too_wide(desc, tile):
            return reason
        here, there = block_count(desc, tile), block_count(measured, tile)
        wanted = adapted_slices(desc.K, tile.BK or 1, config.slices, here, there, exact)
        if not (slices := self._possible(device, desc, tile, wanted)):
            return "it would have no slices of K"
        made = with_slices(tile, slices)
        if blocks.chain_of(desc, made) is None:
            return "it has no registers for short chains"
        width = desc.widths[2] if slices == 1 or self.meet else widest(desc.N)
        options = blocks.layout_options(desc, made, dict(config.options), width)
        return self.complete(device, TileConfig(made, options))

    def _possible(self, device: Device, desc: GemmDesc, tile: Tile, wanted: int) -> int:
        """Return the slices of K for a product and a tile, about as many as are wanted; 0 if there can be none."""
        return wanted

    def test_problem(self, desc: Desc, config: TileConfig) -> tuple[tuple[int, int, int], TileConfig]:
        tile, depth = config.tile, TEST_SLICES * (config.tile.BK or 1) + TEST_EDGE
        slices = whole_slices(depth, tile.BK or 1, min(config.slices, TEST_SLICES))
        return (tile.BM + TEST_EDGE, tile.BN + TEST_EDGE, depth), replace(config, tile=with_slices(tile, slices))

    def space(self, device: Device, desc: GemmDesc) -> Axes:
        base: Axes = {**RECORD.space, **SEARCHED} if device.kind == "gpu" else ON_CPU
        slices = {n for tile in SIZES for n in split_k_factors(desc, tile, device.compute_units)}
        return {**base, "SPLIT_K": tuple(sorted({*base["SPLIT_K"], *slices}))}

    def at(self, device: Device, desc: GemmDesc, point: Point) -> TileConfig | None:
        tile = Tile(**{k: v for k, v in point.items() if k not in SEARCHED})
        if (tile.SPLIT_K or 1) > 1 and (tile.SPLIT_K or 1) * (tile.BK or 1) > desc.K:
            return None
        if blocks.chain_of(desc, tile) is None or not RECORD.allows(replace(fitted(desc, tile), SPLIT_K=None), (), device):
            return None
        return configuration(device, desc, tile, {k: v for k, v in point.items() if k in SEARCHED})

    def point(self, config: TileConfig) -> Point:
        found = {**config.tile.given(), **{k: v for k, v in config.options if k in SEARCHED}}
        return {"SPLIT_K": 1, **{k: v for k, v in found.items() if k not in ("VA", "VB")}}

    def starts(self, device: Device, desc: GemmDesc) -> Iterator[Point]:
        known = self.space(device, desc)
        first = {name: values[0] for name, values in known.items()} | ({"PADA": 4, "PADB": 4} if device.kind == "gpu" else {})
        for values in itertools.product(*(known[name] for name in SEARCHED_BLOCKS)):
            at = {**first, **dict(zip(SEARCHED_BLOCKS, values, strict=True))}
            at["VEC"] = next((v for v in known["VEC"] if at["TN"] % v == 0), 1)
            mostly_outside = at["BM"] >= 2 * max(desc.M, 8) or at["BN"] >= 2 * max(desc.N, 16)
            if at["WM"] > at["BM"] or at["WN"] > at["BN"] or (device.kind != "gpu" and mostly_outside):
                continue
            for stages in known["STAGES"]:
                tile = Tile(**{k: v for k, v in at.items() if k not in SEARCHED and k != "STAGES"}, STAGES=stages)
                if RECORD.allows(replace(fitted(desc, tile), SPLIT_K=None), (), device):
                    for slices in split_k_factors(desc, tile, device.compute_units):
                        yield {**at, "STAGES": stages, "SPLIT_K": slices}

    def search_cost(self, device: Device, desc: GemmDesc, config: TileConfig) -> float:
        # `cost`; on a CPU what the busiest core computes, where small pieces read more for each multiplication
        if device.kind == "gpu":
            return self.cost(device, desc, config)
        tile = config.tile
        waves: int = -(-block_count(desc, tile) * config.slices // device.compute_units)
        reads = 1 + 8 / (tile.TM or 1) + 16 / (tile.TN or 1)
        depth = slice_depth(desc.depth, tile.BK or 1, config.slices) + 64 / (tile.BK or 1)
        return waves * tile.BM * tile.BN * depth * reads / blocks.CPU_RATE


def is_regrouped(config: TileConfig) -> bool:
    """Return True if lanes exchange results before they write them: C's accesses are narrower than pieces, and there is room.

    ``REGROUPED`` in ``tiled.cl`` says the same.
    """
    vc = dict(config.options).get("VC", 1)  # what the text has where no switch says otherwise
    return vc < (config.tile.VEC or 1) and blocks.is_roomy(config.tile)


def configuration(device: Device, desc: GemmDesc, tile: Tile, switches: Mapping[str, int]) -> TileConfig:
    """Return a tile and the searched switches with all that follows from the product."""
    made = with_slices(fitted(desc, tile), whole_slices(desc.K, tile.BK or 1, tile.SPLIT_K or 1))
    return TileConfig(made, RECORD.complete(device, {**blocks.product_options(desc, made), **switches}.items()))


def arguments(desc: GemmDesc, tile: Tile, slices: int, ldc: int, stride_c: int, stride_slice: int) -> list[np.generic]:
    """Return the kernel's arguments behind β: sizes, leading dimensions, blocks down and across, depth of a slice, and strides.

    ``ldc``, ``stride_c`` and ``stride_slice`` are of where results are written: C, or scratch memory for each slice.
    """
    depth = slice_depth(desc.K, tile.BK or 1, slices)
    return [
        *uints(desc.M, desc.N, desc.K, desc.lda, desc.ldb, ldc, *tile_grid(desc, tile), depth),
        *longs(desc.stride_a, desc.stride_b, stride_c, stride_slice),
    ]


def _plan(session: Session, desc: GemmDesc, record: LibraryKernel, config: TileConfig, meet: bool) -> Plan:
    """Return the plan of a K that may be one chain: all slices in one, with a second pass unless they ``meet`` in clusters."""
    tile = config.tile
    slices = whole_slices(desc.K, tile.BK or 1, config.slices)
    if meet and slices != config.slices:
        raise LaunchError(f"{desc}: K makes {slices} slices of whole tiles, and not {config.slices}, as clusters have blocks")
    passes = 1 if meet else slices  # slices whose results lie in memory
    tiles_m, tiles_n = tile_grid(desc, tile)
    area = desc.M * desc.N
    ldc, stride_c, stride_slice = (desc.N, area, area * desc.batch) if passes > 1 else (desc.ldc, desc.stride_c, 0)
    at_once = MOST_GROUPS // (tiles_m * tiles_n)  # products in a launch
    if not at_once:
        raise LaunchError(f"{desc}: {tiles_m * tiles_n:,} work-groups where a launch has {MOST_GROUPS:,} at most")
    fixed = arguments(desc, tile, slices, ldc, stride_c, stride_slice)

    record = record if passes > 1 else block_record(session, desc, record)
    whole = direct(session, record, config, (tiles_m * tiles_n * min(at_once, desc.batch), slices), (tile.work_items,), fixed)
    if desc.batch <= at_once:
        return summed(session, desc, passes, whole)
    parts = []
    for first in range(0, desc.batch, at_once):
        steps = {A: first * desc.stride_a, B: first * desc.stride_b, C: first * stride_c}
        places = [First(x.slot, steps[x.slot]) if isinstance(x, First) else x for x in whole.arguments]
        groups = tiles_m * tiles_n * min(at_once, desc.batch - first), slices
        parts.append(whole._replace(groups=groups, arguments=places))
    return summed(session, desc, passes, *parts)


def configured(device: Device, desc: GemmDesc, one: Block, slices: int, clustered: bool = False) -> TileConfig:
    """Return a block of the table for a product."""
    return all_configured(device, desc, [(0.0, one, slices)], clustered)[0][1]


def all_configured(
    device: Device, desc: GemmDesc, found: Iterable[tuple[float, Block, int]], clustered: bool = False
) -> list[tuple[float, TileConfig]]:
    """Return seconds and configurations of blocks and slices. This is on the way of every selection: names stand sorted."""
    gpu, index32, (_, _, c), parts = device.kind == "gpu", int(desc.index32), desc.widths, widest(desc.N)
    ahead = gpu and device.backend == "opencl"  # NVIDIA's OpenCL compiler takes too many registers to read ahead
    made, chain = [], 0
    for seconds, one, slices in found:
        tile = one.tile
        chain = chain or blocks.shortest_chain(desc.K, tile)  # the same for all blocks of a device
        options = (
            ("AHEAD", 0 if ahead else one.ahead), ("CHAIN", chain if one.chained else 0), ("GROUP_M", 8), ("INDEX32", index32),
            ("ORDER", one.order), ("RESIDENT", one.asked if gpu else 0), ("TRANS_A", int(desc.trans_a)),
            ("TRANS_B", int(desc.trans_b)), ("VC", min(c if slices == 1 or clustered else parts, tile.VEC or 1)),
        )  # fmt: skip
        made.append((seconds, TileConfig(with_slices(tile, slices), options)))
    return made


def _cpu_slices(device: Device, desc: GemmDesc, tile: Tile) -> int:
    """Return the K slices that give each core a work-group where blocks of C are too few."""
    count: int = block_count(desc, tile)
    if count >= device.compute_units or desc.K < CPU_DEEP:
        return 1
    return whole_slices(desc.K, tile.BK or 1, min(-(-device.compute_units // count), desc.K // 256))


FAMILY = Tiled()
