"""Rung 6: TM × TN accumulators in registers."""

from dataclasses import replace

from toprung.lab.ladders.webgpu.r03_more_work import LOOPS
from toprung.lab.ladders.webgpu.r05_transposed import RUNG as BEFORE
from toprung.tile import EQUAL_SHARES, Tile

RUNG = replace(
    BEFORE,
    idea="2D register blocking",
    expects="1/TM + 1/TN reads of workgroup memory a multiplication, a quarter of one at 8×8: two to three times on a GPU "
    "whose registers hold acc and b",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VEC=4, VB=4, PADA=1),),
        "cpu": (Tile(BM=64, BN=64, BK=16, TM=8, TN=8, VEC=4, VB=4, PADA=1),),
    },
    rules=EQUAL_SHARES,
    space={"BM": (32, 64, 128), "BN": (32, 64, 128), "BK": (8, 16, 32), "TM": (4, 8, 16), "TN": (4, 8, 16), "PADA": (0, 1)},
    switches=(LOOPS,),
)
