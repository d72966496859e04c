"""Skinny in clusters: the kernels for short sides with slices of K in the blocks of a cluster, which add up in the same launch.

For vectors and few rows whose blocks are too few for the GPU: a second launch would take as long as the first. From compute
capability 9.0 on, through CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from toprung import backends
from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.gemm.classes import is_skinny
from toprung.gemm.desc import Desc, Skinny
from toprung.kernels.base import Axes, KernelConfig, Launches, Point
from toprung.kernels.cluster import LARGEST, no_clusters
from toprung.kernels.record import LibraryKernel
from toprung.kernels.skinny import record
from toprung.kernels.skinny.family import SkinnyConfig, SkinnyFamily, launched
from toprung.kernels.skinny_launch import skinny_launches
from toprung.kernels.skinny_model import SMALL, block_count, iteration_depth, skinny_seconds, teams
from toprung.kernels.split_k import LEAST_ITERATIONS, whole_slices, with_slices
from toprung.tile import Tile

SLICES = (2, 3, 4, 6, 8)
"""Cluster sizes that are weighed, one slice of K for each block."""
MOST = 16
"""Work-groups per SM, all slices together, up to which a cluster size is weighed: as many of 128 work-items as an SM holds."""


def _record(kernel: str, slices: int) -> LibraryKernel:
    of = record.RECORDS[kernel]
    return replace(
        of,
        idea="slices of K in the blocks of a cluster",
        expects="a launch less than skinny with as many slices",
        local_bytes=lambda tile: of.local_bytes(tile) + 4 * (SMALL[-1] * tile.BM + slices),
        needs=no_clusters,
        defines={"SLICES": slices},
        family="skinny_cluster",
        source=Path(__file__).with_name(f"{kernel}.cl"),
    )


RECORDS = {(kernel, slices): _record(kernel, slices) for kernel in record.RECORDS for slices in range(2, LARGEST + 1)}


class SkinnyCluster(SkinnyFamily):
    """The kernels for short sides with slices of K in clusters."""

    name = "skinny_cluster"

    def supports(self, device: Device, desc: Desc) -> str:
        return no_clusters(device) or super().supports(device, desc)

    def candidates(self, device: Device, desc: Desc) -> Iterator[SkinnyConfig]:
        if not is_skinny(desc):
            return
        s = desc.skinny
        options = self._options(device, desc)
        for tile in teams(s):
            for slices in SLICES:
                few = slices * block_count(s, tile) <= MOST * device.compute_units
                if few and _fits(s, tile, slices) and self._record(tile, slices).allows(tile, options, device):
                    yield SkinnyConfig(with_slices(tile, slices), options)

    def cost(self, device: Device, desc: Desc, config: SkinnyConfig) -> float:
        return skinny_seconds(device, desc.skinny, config.tile, config.slices, clustered=True)

    def reason(self, device: Device, desc: Desc, config: SkinnyConfig) -> str:
        blocks = block_count(desc.skinny, config.tile)
        return (
            f"one side is {desc.skinny.few}: memory is the limit, and the large operand is read once; {blocks} work-groups are too "
            f"few for {device.compute_units} compute units, so each is a cluster of {config.slices} slices of K"
        )

    # running

    def compile(self, session: Session, desc: Desc, config: SkinnyConfig) -> Launches:
        slices, piece = config.slices, iteration_depth(config.tile)
        if (whole := whole_slices(desc.skinny.depth, piece, slices)) != slices:
            raise LaunchError(f"{desc}: K makes {whole} slices of whole pieces, and not {slices}, as clusters have blocks")
        config = launched(session.device, desc, config)
        return skinny_launches(session, desc, self._record(config.tile, slices), config, piece, meet=True)

    def workspace_bytes(self, device: Device, desc: Desc, config: KernelConfig) -> int:
        # 0: slices meet in shared memory
        return 0

    def launch_count(self, device: Device, desc: Desc, config: KernelConfig) -> int:
        return 1

    # the store

    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> SkinnyConfig:
        made = super().decode(tile, options)
        if not 2 <= made.slices <= LARGEST:
            raise ValueError(f"skinny_cluster needs a tile with SPLIT_K of 2 to {LARGEST}")
        return made

    def adapt(self, device: Device, desc: Desc, config: SkinnyConfig, measured: Desc, exact: bool) -> KernelConfig | str:
        if reason := self.supports(device, desc):
            return reason
        made = super().adapt(device, desc, config, measured, exact)
        if isinstance(made, str):
            return made
        assert isinstance(made, SkinnyConfig)
        slices = min(made.slices, LARGEST)
        if slices < 2 or not _fits(desc.skinny, made.tile, slices):
            return "it would have no slices of K"
        made = replace(made, tile=with_slices(made.tile, slices))
        return self._record(made.tile, slices).refused(made, device) or made

    def texts(self, backend: str) -> Iterable[str]:
        return [backends.prelude(backend), *(RECORDS[kernel, 2].text() for kernel in record.RECORDS)]

    # verification and the tuner

    def test_problem(self, desc: Desc, config: SkinnyConfig) -> tuple[tuple[int, int, int], KernelConfig]:
        (M, N, _), _ = super().test_problem(desc, config)
        # K is no multiple of a slice, but of the widest access: rows that run along K begin where operands of the product may
        return (M, N, 2 * config.slices * iteration_depth(config.tile) - 4), config

    def source(self, device: Device, config: SkinnyConfig) -> Source:
        return self._record(config.tile, config.slices).source_for(config.tile, config.options, device)

    def space(self, device: Device, desc: Desc) -> Axes:
        found = super().space(device, desc)
        return {**found, "SPLIT_K": tuple(range(2, LARGEST + 1))} if found else {}

    def at(self, device: Device, desc: Desc, point: Point) -> SkinnyConfig | None:
        made = super().at(device, desc, point)
        if (
            made is None
            or not 2 <= made.slices <= LARGEST
            or not self._record(made.tile, made.slices).allows(replace(made.tile, SPLIT_K=None), made.options, device)
        ):
            return None
        return made

    @staticmethod
    def _record(tile: Tile, slices: int) -> LibraryKernel:
        return RECORDS["columns" if tile.KU else "rows", slices]


def _fits(s: Skinny, tile: Tile, slices: int) -> bool:
    """Return True if each block has a slice that is worth it, none of them empty."""
    piece = iteration_depth(tile)
    return s.depth >= slices * LEAST_ITERATIONS * piece and whole_slices(s.depth, piece, slices) == slices


FAMILY = SkinnyCluster()
