"""Rung 8: several vectors a side for each work-item."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r07_micro_4x4 import ALIGNED_ROWS, WHOLE_LOADS, shared_accesses
from toprung.lab.rung import Rung
from toprung.tile import EQUAL_SHARES, Tile

RUNG = Rung(
    idea="8×8 micro-kernel",
    expects="a quarter of a local read a multiplication where 4×4 has half: 1.3 to 1.6 times on a GPU",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VA=4, VB=4, PADA=4),),
        "cpu": (Tile(BM=32, BN=64, BK=16, TM=8, TN=32, VA=4, VB=16, PADA=4),),
    },
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=Tile(BM=128, BN=128, BK=8, TM=8, TN=8, VA=4, VB=4, PADA=0),
    rules=(WHOLE_LOADS, ALIGNED_ROWS, *EQUAL_SHARES),
    space={
        "BM": (32, 64, 128), "BN": (32, 64, 128), "BK": (8, 16), "TM": (4, 8), "TN": (4, 8, 16, 32), "VA": (1, 4), "VB": (4, 16),
        "PADA": (0, 4),
    },
    whole="ABC",
)  # fmt: skip
