"""Rung 5: four elements of a row of C for each work-item."""

from dataclasses import replace

from toprung.lab.ladders.turing.r04_no_conflicts import RUNG as BEFORE
from toprung.tile import EQUAL_SHARES, Rule, Tile

RUNG = replace(
    BEFORE,
    idea="1×4 micro-kernel",
    expects="1 + 1/TN local reads a multiplication in place of 2: up to 1.6 times at TN = 4",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=32, BN=32, BK=32, TM=1, TN=4, PADA=1),)),
    published=Tile(BM=32, BN=32, BK=32, TM=1, TN=4, PADA=0),
    rules=(Rule("TM = 1", "a work-item owns elements of one row", lambda t, d: (t.TM or 1) == 1), *EQUAL_SHARES),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (16, 32), "TN": (2, 4, 8), "PADA": (0, 1)},
)
