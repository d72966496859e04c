"""Rung 15: few enough registers for two work-groups a multiprocessor."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r07_micro_4x4 import shared_accesses
from toprung.lab.ladders.turing.r09_warp_tiles import RULES, SPACE
from toprung.lab.ladders.turing.r12_boustrophedon import TILES
from toprung.lab.rung import Rung

RUNG = Rung(
    idea="room for two",
    expects="two work-groups a multiprocessor as rung 10, the fastest so far, has, and the order of rung 12 on top: 1.01 to 1.03 "
    "times rung 10; through OpenCL, where rung 10 needs more than 128 registers, up to 1.2 times if this fits",
    tiles=TILES,
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    rules=RULES,
    space={**SPACE, "TN": (4, 8, 16)},
    whole="ABC",
    made_for="gpu",
)
