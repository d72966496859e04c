"""Rung 3: a strip of rows for each work-item."""

from toprung.lab.ladders.kepler.r02_local_tiles import SQUARE, shared_accesses, two_tiles
from toprung.lab.rung import Rung
from toprung.tile import Tile

RUNG = Rung(
    idea="a strip of C per work-item",
    expects="1 + 1/TM local reads a multiplication in place of 2: up to 1.8 times where local memory limits",
    tiles={
        "gpu": (Tile(BM=32, BN=32, BK=32, TM=8),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=8),),
    },
    local_bytes=two_tiles,
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=32, TM=8),
    rules=(SQUARE,),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (16, 32, 64), "TM": (2, 4, 8, 16)},
    whole="ABC",
)
