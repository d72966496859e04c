"""Tiled in clusters: the tunable block kernel with its slices of K in the blocks of a cluster, which add up in the same launch.

For products whose blocks are too few for the GPU, of 300 to 1,000 cubed and the like: a second launch, and memory for the slices,
would take a tenth of their time. From compute capability 9.0 on, through CUDA.
"""

from __future__ import annotations

from pathlib import Path

from toprung.device import Device
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels import blocks
from toprung.kernels.base import TEST_EDGE, Axes, Point, TileConfig
from toprung.kernels.blocks import BLOCKS, cluster_bytes
from toprung.kernels.cluster import LARGEST, no_clusters
from toprung.kernels.cost_model import block_count
from toprung.kernels.record import LibraryKernel
from toprung.kernels.split_k import are_deep
from toprung.kernels.tiled.family import Tiled, configured
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


class TiledCluster(Tiled):
    """The tunable block kernel with slices of K in clusters."""

    name = "tiled_cluster"
    meet = True
    records = (RECORDS[2],)
    ranked = False

    def record(self, config: TileConfig) -> LibraryKernel:
        if config.slices not in RECORDS:
            raise ValueError(f"tiled_cluster needs a tile with SPLIT_K of 2 to {LARGEST}")
        return RECORDS[config.slices]

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector or min(desc.M, desc.N) == 1:
            return "it multiplies matrices"
        return "there is nothing to multiply" if desc.is_empty else no_clusters(device)

    def _possible(self, device: Device, desc: GemmDesc, tile: Tile, wanted: int) -> int:
        # each block has rows to add up, memory for them, and a slice that is worth it, none of them empty
        slices = min(wanted, LARGEST, tile.TM or 1)
        room = slices >= 2 and cluster_bytes(tile, slices) <= device.dynamic_local_bytes
        return slices if room and are_deep(desc.K, tile.BK or 1, slices) else 0

    def reason(self, device: Device, desc: Desc, config: TileConfig) -> str:
        groups = block_count(desc, config.tile) * config.slices
        return (
            f"least by the cost model: {groups} blocks for {device.compute_units} SMs, {config.slices} slices of K in each cluster"
        )

    def test_problem(self, desc: Desc, config: TileConfig) -> tuple[tuple[int, int, int], TileConfig]:
        tile = config.tile
        return (tile.BM + TEST_EDGE, tile.BN + TEST_EDGE, 2 * config.slices * (tile.BK or 1) - 4), config

    def space(self, device: Device, desc: Desc) -> Axes:
        return {"BLOCK": tuple(i for i, one in enumerate(BLOCKS) if one.chained), "SPLIT_K": tuple(RECORDS)}

    def at(self, device: Device, desc: GemmDesc, point: Point) -> TileConfig | None:
        one, slices = BLOCKS[point["BLOCK"]], point["SPLIT_K"]
        a, b, _ = desc.widths
        found = next((n for n in blocks.narrowed(device, a, b).blocks if blocks.block_like(n.tile) == one), None)
        if found is None or self._possible(device, desc, found.tile, slices) != slices:
            return None
        return configured(device, desc, found, slices, clustered=True)

    def point(self, config: TileConfig) -> Point:
        like = blocks.block_like(config.tile)
        return {"BLOCK": BLOCKS.index(like) if like else 0, "SPLIT_K": config.slices}

    def starts(self, device: Device, desc: GemmDesc) -> None:  # type: ignore[override]
        return None


FAMILY = TiledCluster()
