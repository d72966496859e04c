"""Rung 1: one work-item per element, the sum in a register."""

from toprung.lab.rung import Rung
from toprung.tile import Tile

RUNG = Rung(
    idea="one work-item per element",
    expects="nothing: this is where the ladder stands",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=32, BN=32), Tile(BM=16, BN=16))),
    published=Tile(BM=32, BN=32),
    space={"BM": (1, 4, 8, 16, 32), "BN": (8, 16, 32, 64)},
)
