"""Rung 9: the next tile is on its way while this one is computed with."""

from dataclasses import replace

from toprung.lab.ladders.webgpu.r07_wide_loads import RUNG as WIDE_LOADS
from toprung.tile import Tile

RUNG = replace(
    WIDE_LOADS,
    idea="two buffers",
    expects="one barrier a tile in place of two, and loads in flight during the arithmetic; a loss where twice the memory "
    "halves the workgroups",
    tiles={
        "gpu": (
            Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4),
            Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VA=4, VB=4),
            Tile(BM=64, BN=64, BK=8, TM=8, TN=8, VA=4, VB=4),
        ),
        "cpu": (Tile(BM=64, BN=64, BK=16, TM=8, TN=8, VA=4, VB=4),),
    },
    local_bytes=lambda tile: 2 * WIDE_LOADS.local_bytes(tile),
    switches=(),
)
