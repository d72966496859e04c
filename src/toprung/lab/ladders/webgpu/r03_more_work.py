"""Rung 3: a strip of rows for each invocation."""

from toprung.lab.ladders.webgpu.r02_workgroup_tiles import SQUARE, two_tiles
from toprung.lab.rung import Rung
from toprung.tile import Tile

RUNG = Rung(
    idea="a strip of C per invocation",
    expects="1 + 1/TM reads of workgroup memory a multiplication in place of 2: up to 1.8 times where those limit",
    tiles={"gpu": (Tile(BM=32, BN=32, BK=32, TM=8),), "cpu": (Tile(BM=32, BN=32, BK=32, TM=8),)},
    local_bytes=two_tiles,
    rules=(SQUARE,),
    space={"BM": (16, 32), "BN": (16, 32), "BK": (16, 32), "TM": (2, 4, 8, 16)},
    whole="ABC",
)
