"""Tiled in clusters: the tunable block kernel with its slices of K in the blocks of a cluster, which add up in the same launch.

For products whose blocks are too few for the GPU, of 300 to 1,000 cubed and the like: a second launch, and memory for the slices,
would take a tenth of their time. From compute capability 9.0 on, through CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from toprung.backends.base import Session
from toprung.backends.plan import Plan
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import blocks
from toprung.kernels.base import MOST, TEST_EDGE, Axes, Launches, Point, TileConfig
from toprung.kernels.blocks import BLOCKS, cluster_bytes, tile_grid
from toprung.kernels.cluster import LARGEST, no_clusters
from toprung.kernels.cost_model import block_count
from toprung.kernels.launch import MOST_GROUPS, block_record, direct
from toprung.kernels.record import LibraryKernel, RecordFamily
from toprung.kernels.split_k import adapted_slices, are_deep, whole_slices, with_slices
from toprung.kernels.tiled.family import all_configured, arguments, configured, is_regrouped
from toprung.kernels.tiled.record import RECORD as TILED
from toprung.tile import Rule, Tile


def _record(slices: int) -> LibraryKernel:
    return LibraryKernel(
        idea="slices of K in the blocks of a cluster",
        expects="a launch and a pass through the L2 less than tiled with as many slices",
        tiles={"gpu": TILED.tiles["gpu"]},
        local_bytes=lambda tile: cluster_bytes(tile, slices),
        rules=(*TILED.rules, Rule("SLICES ≤ TM", "each block adds up rows", lambda t, d: slices <= (t.TM or 1))),
        switches=TILED.switches,
        dynamic=True,
        needs=no_clusters,
        defines={"SLICES": slices},
        source=Path(__file__).with_name("tiled_cluster.cl"),
        routine="gemm",
    )


RECORDS = {slices: _record(slices) for slices in range(2, LARGEST + 1)}


class TiledCluster(RecordFamily[TileConfig]):
    """The tunable block kernel with slices of K in clusters."""

    name = "tiled_cluster"
    records = (RECORDS[2],)
    predicts = True

    def record(self, config: TileConfig) -> LibraryKernel:
        if config.slices not in RECORDS:
            raise ValueError(f"tiled_cluster needs a tile with SPLIT_K of 2 to {LARGEST}")
        return RECORDS[config.slices]

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector or min(desc.M, desc.N) == 1:
            return "it multiplies matrices"
        return "there is nothing to multiply" if desc.is_empty else no_clusters(device)

    def weighed(self, device: Device, desc: GemmDesc, most: int = MOST) -> Iterable[tuple[float, TileConfig]]:
        return all_configured(device, desc, blocks.weigh(device, desc, True, most), clustered=True)

    def _fits(self, device: Device, desc: GemmDesc, tile: Tile, slices: int) -> bool:
        """Return True if each block has rows to add up, memory for them, and a slice that is worth it, none of them empty."""
        room = slices <= (tile.TM or 1) and cluster_bytes(tile, slices) <= device.dynamic_local_bytes
        return room and are_deep(desc.K, tile.BK or 1, slices)

    def cost(self, device: Device, desc: GemmDesc, config: TileConfig) -> float:
        # the block model's seconds; infinity for a tile that is not in its table
        like = blocks.block_like(config.tile)
        if like is None:
            return float("inf")
        regrouped = is_regrouped(config)
        return blocks.block_seconds(device, desc, like, config.tile, config.slices, regrouped=regrouped, clustered=True)

    def reason(self, device: Device, desc: Desc, config: TileConfig) -> str:
        groups = block_count(desc, config.tile) * config.slices
        return (
            f"least by the cost model: {groups} blocks for {device.compute_units} SMs, {config.slices} slices of K in each cluster"
        )

    def compile(self, session: Session, desc: GemmDesc, config: TileConfig, epilogue: Epilogue | None = None) -> Launches:
        tile, slices = config.tile, config.slices
        if (whole := whole_slices(desc.K, tile.BK or 1, slices)) != slices:
            raise LaunchError(f"{desc}: K makes {whole} slices of whole tiles, and not {slices}, as clusters have blocks")
        tiles_m, tiles_n = tile_grid(desc, tile)
        groups = tiles_m * tiles_n * desc.batch
        if groups > MOST_GROUPS:
            raise LaunchError(f"{desc}: {groups:,} work-groups where a launch has {MOST_GROUPS:,} at most")
        fixed = arguments(desc, tile, slices, desc.ldc, desc.stride_c, 0)  # slices lie in no memory: no stride between them
        record = block_record(session, desc, self.record(config))
        return Launches(session, Plan([direct(session, record, config, (groups, slices), (tile.work_items,), fixed)]))

    def adapt(self, device: Device, desc: GemmDesc, config: TileConfig, measured: GemmDesc, exact: bool) -> TileConfig | str:
        tile = config.tile
        if reason := blocks.too_wide(desc, tile):
            return reason
        here, there = block_count(desc, tile), block_count(measured, tile)
        slices = adapted_slices(desc.K, tile.BK or 1, config.slices, here, there, exact)
        slices = min(slices, LARGEST, tile.TM or 1)
        if slices < 2 or not self._fits(device, desc, tile, slices):
            return "it would have no slices of K"
        options = blocks.layout_options(desc, tile, dict(config.options), desc.widths[2])
        return self.complete(device, TileConfig(with_slices(tile, slices), options))

    def test_problem(self, desc: Desc, config: TileConfig) -> tuple[tuple[int, int, int], TileConfig]:
        tile = config.tile
        return (tile.BM + TEST_EDGE, tile.BN + TEST_EDGE, 2 * config.slices * (tile.BK or 1) - 4), config

    def space(self, device: Device, desc: Desc) -> Axes:
        return {"BLOCK": tuple(i for i, one in enumerate(BLOCKS) if one.chained), "SPLIT_K": tuple(RECORDS)}

    def at(self, device: Device, desc: GemmDesc, point: Point) -> TileConfig | None:
        one, slices = BLOCKS[point["BLOCK"]], point["SPLIT_K"]
        a, b, _ = desc.widths
        found = next((n for n in blocks.narrowed(device, a, b).blocks if blocks.block_like(n.tile) == one), None)
        if found is None or not self._fits(device, desc, found.tile, slices):
            return None
        return configured(device, desc, found, slices, clustered=True)

    def point(self, config: TileConfig) -> Point:
        like = blocks.block_like(config.tile)
        return {"BLOCK": BLOCKS.index(like) if like else 0, "SPLIT_K": config.slices}


FAMILY = TiledCluster()
