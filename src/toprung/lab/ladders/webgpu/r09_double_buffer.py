"""Rung 9: the next tile is on its way while this one is computed with."""

from toprung.lab.ladders.webgpu.r02_workgroup_tiles import two_tiles
from toprung.lab.ladders.webgpu.r07_wide_loads import SPACE
from toprung.lab.rung import Rung
from toprung.tile import EQUAL_SHARES, Tile


def two_buffers(tile: Tile) -> int:
    """Bytes of As and Bs, two of each."""
    return 2 * two_tiles(tile)


TILES = {
    "gpu": (
        Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4),
        Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VA=4, VB=4),
        Tile(BM=64, BN=64, BK=8, TM=8, TN=8, VA=4, VB=4),
    ),
    "cpu": (Tile(BM=64, BN=64, BK=16, TM=8, TN=8, VA=4, VB=4),),
}

RUNG = Rung(
    idea="two buffers",
    expects="one barrier a tile in place of two, and loads in flight during the arithmetic; a loss where twice the memory "
    "halves the workgroups",
    tiles=TILES,
    local_bytes=two_buffers,
    rules=EQUAL_SHARES,
    space=SPACE,
    whole="ABC",
    transposed="A",
)
