"""Rung 4: local memory without bank conflicts."""

from dataclasses import replace

from toprung.lab.ladders.turing.r02_local_tiles import SPACE, SQUARE, TILES, tiles_bytes
from toprung.lab.rung import Rung
from toprung.tile import Tile

RUNG = Rung(
    idea="no bank conflicts",
    expects="reads of Bs 32 times as fast, so the arithmetic decides: two to five times; without the padding of As half of that",
    tiles={kind: tuple(replace(t, PADA=1) for t in tiles) for kind, tiles in TILES.items()},
    local_bytes=tiles_bytes,
    published=Tile(BM=32, BN=32, BK=32, PADA=0),
    rules=(SQUARE,),
    space={**SPACE, "PADA": (0, 1)},
    whole="ABC",
)
