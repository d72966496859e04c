"""Rung 3: places computed once, pointers that walk."""

from toprung.lab.ladders.turing.r02_local_tiles import SPACE, SQUARE, TILES, shared_accesses, tiles_bytes
from toprung.lab.rung import Rung
from toprung.tile import Tile

RUNG = Rung(
    idea="fewer live registers",
    expects="nothing where the compiler moves the arithmetic out of the loop by itself; the register counts say whether it does",
    tiles=TILES,
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=32),
    rules=(SQUARE,),
    space=SPACE,
    whole="ABC",
)
