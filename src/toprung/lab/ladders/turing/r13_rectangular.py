"""Rung 13: a thread tile twice as wide as it is high."""

from dataclasses import replace

from toprung.lab.ladders.turing.r12_boustrophedon import RUNG as BEFORE
from toprung.tile import Tile

RUNG = replace(
    BEFORE,
    idea="8×16 thread tile",
    expects="0.19 local reads a multiplication in place of 0.25, a block twice as large and half the turns: 1.05 to 1.1 times at "
    "sizes that fill the device, a loss at small ones",
    tiles={
        "gpu": (
            Tile(BM=128, BN=256, BK=8, WM=32, WN=128, TM=8, TN=16, VA=4, VB=4, PADA=4),
            Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4, PADA=4),
        ),
        "cpu": (Tile(BM=32, BN=32, BK=8, WM=16, WN=32, TM=8, TN=16, VA=4, VB=16, PADA=4),),
    },
    switches=(),
    space={**BEFORE.space, "BN": (64, 128, 256), "BK": (8, 16), "WN": (64, 128), "TN": (8, 16)},
)
