"""Skinny in clusters: the kernels for short sides with slices of K in the blocks of a cluster, which add up in the same launch.

For vectors and few rows whose blocks are too few for the GPU: a second launch would take as long as the first. From compute
capability 9.0 on, through CUDA.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from toprung.device import Device
from toprung.gemm.desc import Desc, Skinny
from toprung.kernels.base import Axes, Point
from toprung.kernels.cluster import LARGEST, no_clusters
from toprung.kernels.record import LibraryKernel
from toprung.kernels.skinny import record
from toprung.kernels.skinny.family import SkinnyConfig, SkinnyFamily
from toprung.kernels.skinny_model import iteration_depth
from toprung.kernels.split_k import are_deep
from toprung.tile import Tile


def _record(kernel: str, slices: int) -> LibraryKernel:
    of = record.RECORDS[kernel]
    return replace(
        of,
        idea="slices of K in the blocks of a cluster",
        expects="a launch less than skinny with as many slices",
        local_bytes=lambda tile: record.cluster_bytes(of, tile, slices),
        needs=no_clusters,
        defines={"SLICES": slices},
        source=Path(__file__).with_name(f"{kernel}.cl"),
    )


RECORDS = {(kernel, slices): _record(kernel, slices) for kernel in record.RECORDS for slices in range(2, LARGEST + 1)}


class SkinnyCluster(SkinnyFamily):
    """The kernels for short sides with slices of K in clusters."""

    name = "skinny_cluster"
    meet = True
    records = (RECORDS["rows", 2], RECORDS["columns", 2])

    def record(self, config: SkinnyConfig) -> LibraryKernel:
        if not 2 <= config.slices <= LARGEST:
            raise ValueError(f"skinny_cluster needs a tile with SPLIT_K of 2 to {LARGEST}")
        return RECORDS[config.kernel, config.slices]

    def supports(self, device: Device, desc: Desc) -> str:
        return no_clusters(device) or super().supports(device, desc)

    def _possible(self, s: Skinny, tile: Tile, wanted: int) -> int:
        slices = min(wanted, LARGEST)
        return slices if slices >= 2 and are_deep(s.depth, iteration_depth(tile), slices) else 0

    def test_problem(self, desc: Desc, config: SkinnyConfig) -> tuple[tuple[int, int, int], SkinnyConfig]:
        (M, N, _), _ = super().test_problem(desc, config)
        # K is no multiple of a slice, but of the widest access: rows that run along K begin where operands of the product may
        return (M, N, 2 * config.slices * iteration_depth(config.tile) - 4), config

    def space(self, device: Device, desc: Desc) -> Axes:
        return {**super().space(device, desc), "SPLIT_K": tuple(range(2, LARGEST + 1))}

    def at(self, device: Device, desc: Desc, point: Point) -> SkinnyConfig | None:
        made = super().at(device, desc, point)
        if (
            made is None
            or not 2 <= made.slices <= LARGEST
            or not self.record(made).allows(replace(made.tile, SPLIT_K=None), made.options, device)
        ):
            return None
        return made


FAMILY = SkinnyCluster()
