"""Rung 7: tiles loaded VA and VB floats at a time."""

from toprung.lab.ladders.kepler.r02_local_tiles import two_tiles
from toprung.lab.ladders.kepler.r05_transposed import EQUAL_SHARES
from toprung.lab.rung import Rung
from toprung.tile import Tile

TILES = {
    "gpu": (Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4),),
    "cpu": (Tile(BM=32, BN=32, BK=64, TM=8, TN=32, VA=8, VB=16), Tile(BM=32, BN=256, BK=32, TM=8, TN=16, VA=8, VB=16)),
}
PUBLISHED = Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4)
SPACE = {
    "BM": (32, 64, 128), "BN": (32, 64, 128), "BK": (8, 16, 32, 64), "TM": (4, 8), "TN": (4, 8, 16, 32), "VA": (1, 4, 8),
    "VB": (4, 16),
}  # fmt: skip

RUNG = Rung(
    idea="wide loads, register tiles",
    expects="a quarter of the load and store instructions at width 4",
    tiles=TILES,
    local_bytes=two_tiles,
    published=PUBLISHED,
    rules=EQUAL_SHARES,
    space=SPACE,
    whole="ABC",
    transposed="A",
)
