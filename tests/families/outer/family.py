"""Outer: one element of C for each work-item, in blocks that a search may shape. A family in a folder of its own, for the tests."""

from __future__ import annotations

from pathlib import Path

from toprung.backends.plan import Plan
from toprung.kernels.base import Launches, TileConfig
from toprung.kernels.launch import direct, longs, uints
from toprung.kernels.record import LibraryKernel, RecordFamily
from toprung.tile import Tile

RECORD = LibraryKernel(
    idea="one element of C for each work-item",
    expects="nothing: it is there to be found",
    tiles={"gpu": (Tile(BM=8, BN=32),), "cpu": (Tile(BM=1, BN=8),)},
    stem="outer",
    source=Path(__file__).with_name("outer.cl"),
    routine="outer",
)


class Outer(RecordFamily):
    """One element of C for each work-item."""

    name = "outer"
    records = (RECORD,)

    def supports(self, device, desc):
        return "it multiplies matrices" if desc.is_vector or desc.is_empty else ""

    def cost(self, device, desc, config):
        return 1e-12 * config.tile.BN  # whatever it is weighed against, it wins

    def weighed(self, device, desc, most=0):
        config = TileConfig(RECORD.tile_for(device))
        return [(self.cost(device, desc, config), config)] if desc.M == 48 else []

    def compile(self, session, desc, config):
        tile = config.tile
        a = (1, desc.lda) if desc.trans_a else (desc.lda, 1)
        b = (1, desc.ldb) if desc.trans_b else (desc.ldb, 1)
        fixed = [*uints(desc.M, desc.N, desc.K), *longs(*a, *b, desc.ldc, desc.stride_a, desc.stride_b, desc.stride_c)]
        groups = (-(-desc.N // tile.BN), -(-desc.M // tile.BM), desc.batch)
        return Launches(session, Plan([direct(session, RECORD, config, groups, (tile.BN, tile.BM, 1), fixed)]))

    def test_problem(self, desc, config):
        return (config.tile.BM + 3, config.tile.BN + 5, 21), config

    def space(self, device, desc):
        return {"BM": (1, 2), "BN": (8, 16)} if desc.M == 48 else {}

    def at(self, device, desc, point):
        return TileConfig(Tile(BM=point["BM"], BN=point["BN"]))

    def point(self, config):
        return {"BM": config.tile.BM, "BN": config.tile.BN}


FAMILY = Outer()
