"""Rung 1: every operand of every multiplication from a storage buffer."""

from toprung.lab.rung import Rung
from toprung.tile import Tile

RUNG = Rung(
    idea="one invocation per element",
    expects="nothing: this is where the ladder stands",
    tiles={"gpu": (Tile(BM=16, BN=16),), "cpu": (Tile(BM=16, BN=16),)},
    space={"BM": (1, 4, 8, 16), "BN": (8, 16, 32, 64)},
)
