"""Rung 6: TM × TN accumulators in registers."""

from dataclasses import replace

from toprung.lab.ladders.kepler.r05_transposed import RUNG as BEFORE
from toprung.tile import EQUAL_SHARES, Tile

RUNG = replace(
    BEFORE,
    idea="2D register blocking",
    expects="1/TM + 1/TN local reads a multiplication, a quarter of one at 8×8: two to three times on a GPU",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VEC=4, PADA=1),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=8, TN=32, VEC=16, PADA=1),),
    },
    published=Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VEC=1, PADA=2),
    rules=EQUAL_SHARES,
    space={
        "BM": (32, 64, 128), "BN": (32, 64, 128), "BK": (8, 16, 32, 64), "TM": (4, 8), "TN": (4, 8, 16, 32), "VEC": (1, 4, 16),
        "PADA": (0, 1),
    },
)  # fmt: skip
