"""Rung 3: the wait for the next stage in the middle of a stage, and no end between tiles."""

from dataclasses import replace

from toprung.lab.ladders.hopper_fp32.r02_last_wave import CUT
from toprung.lab.ladders.hopper_fp32.r02_last_wave import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="a loop without an edge",
    expects="the first k of a stage looks like any other to the scheduler, and a tile's first fragments are there when it begins: "
    "1.05 times rung 2",
    defines={**CUT, "WAIT_AT": 8},
)
