"""Rung 9: the lanes of a warp share one tile that is as square as it can be."""

from dataclasses import replace

from toprung.lab.ladders.turing.r08_micro_8x8 import RUNG as BEFORE
from toprung.tile import Tile, divides

RUNG = replace(
    BEFORE,
    idea="warp tiles",
    expects="a warp reads WM + WN = 96 floats for its multiplications of one k where 2×16 lanes read 144: up to 1.5 times where "
    "local memory limits; nothing on a CPU",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4, PADA=4),),
        "cpu": (Tile(BM=32, BN=64, BK=16, WM=16, WN=64, TM=8, TN=32, VA=4, VB=16, PADA=4),),
    },
    published=Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4, PADA=0),
    rules=(
        divides("BM", "WM", "a block is whole warps high"),
        divides("BN", "WN", "and wide"),
        divides("WM", "TM", "a warp is whole work-items high"),
        divides("WN", "TN", "and wide"),
        *BEFORE.rules,
    ),
    space={
        "BM": (32, 64, 128), "BN": (64, 128), "BK": (8, 16), "WM": (16, 32, 64), "WN": (32, 64), "TM": (4, 8), "TN": (4, 8, 16, 32),
        "VA": (1, 4), "VB": (4, 16), "PADA": (0, 4),
    },
)  # fmt: skip
