"""Rung 4: a loop that fits the instruction cache."""

from dataclasses import replace

from toprung.lab.ladders.hopper_fp32.r02_last_wave import CUT
from toprung.lab.ladders.hopper_fp32.r03_wait_in_the_middle import RUNG as BEFORE
from toprung.tile import Tile

RUNG = replace(
    BEFORE,
    idea="a loop that fits the instruction cache",
    expects="26 KB of instructions in place of 35: 1.01 to 1.02 times rung 3",
    tiles={"gpu": (Tile(BM=128, BN=256, BK=12, TM=8, TN=16, STAGES=6),)},
    defines={**CUT, "WAIT_AT": 3},
)
