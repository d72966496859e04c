"""Plain: one work-item an element. Right on every device and for every product, never fast; the others' yardstick."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path

from toprung.backends.base import Session
from toprung.backends.plan import Plan
from toprung.device import Device
from toprung.gemm.desc import Desc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import MOST, Launches, TileConfig
from toprung.kernels.launch import direct, longs, uints, walkers
from toprung.kernels.record import LibraryKernel, RecordFamily
from toprung.tile import Tile

RECORD = LibraryKernel(
    idea="one work-item an element",
    expects="right on every device and for every shape; the others' yardstick",
    tiles={"gpu": (Tile(BM=1, BN=128), Tile(BM=1, BN=32)), "cpu": (Tile(BM=1, BN=64), Tile(BM=1, BN=1))},
    source=Path(__file__).with_name("plain.cl"),
    routine="gemm",
)


@functools.cache
def _config(device: Device) -> TileConfig:
    return TileConfig(RECORD.tile_for(device))


class Plain(RecordFamily[TileConfig]):
    """The family of last resort."""

    name = "plain"
    records = (RECORD,)

    def supports(self, device: Device, desc: Desc) -> str:
        # empty: it computes everything
        return ""

    def cost(self, device: Device, desc: Desc, config: TileConfig) -> float:
        # infinity: anything else that can run is better
        return math.inf

    def weighed(self, device: Device, desc: Desc, most: int = MOST) -> Iterable[tuple[float, TileConfig]]:
        return [(math.inf, _config(device))]

    def reason(self, device: Device, desc: Desc, config: TileConfig) -> str:
        return "" if desc.is_empty else "no tile of the faster kernels is legal here"

    def compile(self, session: Session, desc: Desc, config: TileConfig, epilogue: Epilogue | None = None) -> Launches:
        if not desc.is_vector:
            a = (1, desc.lda) if desc.trans_a else (desc.lda, 1)
            b = (1, desc.ldb) if desc.trans_b else (desc.ldb, 1)
            sizes = desc.M, desc.N, desc.K
            strides = (desc.batch, *a, desc.stride_a, *b, desc.stride_b, desc.ldc, desc.stride_c)
        else:
            a = (1, desc.lda) if desc.trans else (desc.lda, 1)
            sizes, strides = (desc.length, 1, desc.depth), (1, *a, 0, desc.incx, 0, 0, desc.incy, 0)
        items = config.tile.work_items
        groups, fixed = walkers(sizes[0] * sizes[1] * strides[0], items), [*uints(*sizes), *longs(*strides)]
        return Launches(session, Plan([direct(session, RECORD, config, groups, (items,), fixed)]))

    def adapt(self, device: Device, desc: Desc, config: TileConfig, measured: Desc, exact: bool) -> TileConfig | str:
        return RECORD.refused(config, device) or config

    def test_problem(self, desc: Desc, config: TileConfig) -> tuple[tuple[int, int, int], TileConfig]:
        (rows, cols, depth), _ = super().test_problem(desc, config)
        return (100 if desc.is_vector else rows, cols, depth), config  # a vector with more rows than a work-group


FAMILY = Plain()
