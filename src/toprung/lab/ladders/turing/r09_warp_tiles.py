"""Rung 9: the lanes of a warp share one tile that is as square as it can be."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r07_micro_4x4 import ALIGNED_ROWS, WHOLE_LOADS, shared_accesses
from toprung.lab.rung import Rung
from toprung.tile import EQUAL_SHARES, Tile, divides

TILES = {
    "gpu": (Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4, PADA=4),),
    "cpu": (Tile(BM=32, BN=64, BK=16, WM=16, WN=64, TM=8, TN=32, VA=4, VB=16, PADA=4),),
}
PUBLISHED = Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4, PADA=0)
RULES = (
    divides("BM", "WM", "a block is whole warps high"),
    divides("BN", "WN", "and wide"),
    divides("WM", "TM", "a warp is whole work-items high"),
    divides("WN", "TN", "and wide"),
    WHOLE_LOADS,
    ALIGNED_ROWS,
    *EQUAL_SHARES,
)
SPACE = {
    "BM": (32, 64, 128), "BN": (64, 128), "BK": (8, 16), "WM": (16, 32, 64), "WN": (32, 64), "TM": (4, 8), "TN": (4, 8, 16, 32),
    "VA": (1, 4), "VB": (4, 16), "PADA": (0, 4),
}  # fmt: skip

RUNG = Rung(
    idea="warp tiles",
    expects="a warp reads WM + WN = 96 floats for its multiplications of one k where 2×16 lanes read 144: up to 1.5 times where "
    "local memory limits; nothing on a CPU",
    tiles=TILES,
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=PUBLISHED,
    rules=RULES,
    space=SPACE,
    whole="ABC",
)
