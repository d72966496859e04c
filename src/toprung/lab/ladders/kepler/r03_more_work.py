"""Rung 3: a strip of rows for each work-item."""

from dataclasses import replace

from toprung.lab.ladders.kepler.r02_local_tiles import RUNG as BEFORE
from toprung.tile import Tile

RUNG = replace(
    BEFORE,
    idea="a strip of C per work-item",
    expects="1 + 1/TM local reads a multiplication in place of 2: up to 1.8 times where local memory limits",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=32, BN=32, BK=32, TM=8),)),
    published=Tile(BM=32, BN=32, BK=32, TM=8),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (16, 32, 64), "TM": (2, 4, 8, 16)},
)
