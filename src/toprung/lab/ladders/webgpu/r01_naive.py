"""Rung 1: every operand of every multiplication from a storage buffer."""

from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile

CHECKS = Switch(
    "UNCHECKED", "1: the compiler checks no index and bounds no loop; 2: it bounds no loop. wgpu can do that, a browser never does",
    values=(0, 1, 2),
)  # fmt: skip

RUNG = Rung(
    idea="one invocation per element",
    expects="nothing: this is where the ladder stands",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=16, BN=16),)),
    switches=(CHECKS,),
    space={"BM": (1, 4, 8, 16), "BN": (8, 16, 32, 64)},
)
