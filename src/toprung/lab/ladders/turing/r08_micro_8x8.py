"""Rung 8: several vectors a side for each work-item."""

from dataclasses import replace

from toprung.lab.ladders.turing.r07_micro_4x4 import RUNG as BEFORE
from toprung.lab.ladders.turing.r07_micro_4x4 import WHOLE_VECTORS
from toprung.tile import Tile

RUNG = replace(
    BEFORE,
    idea="8×8 micro-kernel",
    expects="a quarter of a local read a multiplication where 4×4 has half: 1.3 to 1.6 times on a GPU",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VA=4, VB=4, PADA=4),),
        "cpu": (Tile(BM=32, BN=64, BK=16, TM=8, TN=32, VA=4, VB=16, PADA=4),),
    },
    published=Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VA=4, VB=4, PADA=0),
    rules=WHOLE_VECTORS,
    space={
        "BM": (32, 64, 128), "BN": (32, 64, 128), "BK": (8, 16), "TM": (4, 8), "TN": (4, 8, 16, 32), "VA": (1, 4), "VB": (4, 16),
        "PADA": (0, 4),
    },
)  # fmt: skip
