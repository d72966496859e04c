"""Rung 7: a vector of A times a vector of B for each work-item."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.rung import Rung
from toprung.tile import EQUAL_SHARES, Rule, Tile, divides

WHOLE_LOADS = divides("BK", "VA", "a load of A takes VA elements of one row of the tile")
ALIGNED_ROWS = divides("PADA", "VA", "every row of As must begin where a vector may")

RUNG = Rung(
    idea="4×4 micro-kernel",
    expects="1/TM + 1/TN local reads a multiplication, half of one at 4×4: two to three times on a GPU",
    tiles={
        "gpu": (Tile(BM=64, BN=64, BK=16, TM=4, TN=4, VA=4, VB=4, PADA=4),),
        "cpu": (Tile(BM=32, BN=32, BK=16, TM=4, TN=16, VA=4, VB=16, PADA=4),),
    },
    local_bytes=tiles_bytes,
    published=Tile(BM=64, BN=64, BK=16, TM=4, TN=4, VA=4, VB=4, PADA=0),
    rules=(
        Rule("TM = VA", "a work-item owns one vector of rows", lambda t, d: t.TM == t.VA),
        Rule("TN = VB", "and one of columns", lambda t, d: t.TN == t.VB),
        WHOLE_LOADS,
        ALIGNED_ROWS,
        *EQUAL_SHARES,
    ),
    space={
        "BM": (16, 32, 64), "BN": (32, 64), "BK": (8, 16, 32), "TM": (1, 2, 4), "TN": (4, 8, 16), "VA": (1, 2, 4),
        "VB": (4, 8, 16), "PADA": (0, 4),
    },
    whole="ABC",
)  # fmt: skip
