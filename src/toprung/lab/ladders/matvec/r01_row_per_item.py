"""Rung 1: one work-item a row."""

from toprung.lab.rung import Rung
from toprung.tile import Tile

RUNG = Rung(
    idea="one work-item per row",
    expects="nothing: this is where the ladder stands",
    tiles={"gpu": (Tile(BM=256, BN=1),), "cpu": (Tile(BM=64, BN=1),)},
    published=Tile(BM=512, BN=1),
    space={"BM": (32, 64, 128, 256, 512)},
)
