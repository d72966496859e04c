"""Rung 1: every operand of every multiplication from a storage buffer."""

from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile

CHECKS = Switch("UNCHECKED", "the compiler's checks of indices and loops are left out, which wgpu can do and a browser never does")

RUNG = Rung(
    idea="one invocation per element",
    expects="nothing: this is where the ladder stands",
    tiles={"gpu": (Tile(BM=16, BN=16),), "cpu": (Tile(BM=16, BN=16),)},
    switches=(CHECKS,),
    space={"BM": (1, 4, 8, 16), "BN": (8, 16, 32, 64)},
)
