"""Rung 5: four elements of a row of C for each work-item."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r04_no_conflicts import shared_accesses
from toprung.lab.rung import Rung
from toprung.tile import EQUAL_SHARES, Rule, Tile

ONE_ROW = Rule("TM = 1", "a work-item owns elements of one row", lambda t, d: (t.TM or 1) == 1)

RUNG = Rung(
    idea="1×4 micro-kernel",
    expects="1 + 1/TN local reads a multiplication in place of 2: up to 1.6 times at TN = 4",
    tiles={
        "gpu": (Tile(BM=32, BN=32, BK=32, TM=1, TN=4, PADA=1),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=1, TN=4, PADA=1),),
    },
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=32, TM=1, TN=4, PADA=0),
    rules=(ONE_ROW, *EQUAL_SHARES),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (16, 32), "TN": (2, 4, 8), "PADA": (0, 1)},
    whole="ABC",
)
