"""Rung 16: work-groups that run at one time lie together."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r07_micro_4x4 import shared_accesses
from toprung.lab.ladders.turing.r09_warp_tiles import RULES, SPACE
from toprung.lab.ladders.turing.r12_boustrophedon import TILES
from toprung.lab.rung import Rung

RUNG = Rung(
    idea="bands of work-groups",
    expects="264 work-groups run at one time on an H200; row by row at 8192 they span 4 rows and all 64 columns of blocks, in "
    "bands 8 rows and 33 columns: 41 tiles from memory in place of 68 a step. Little up to 4096, where A and B almost fit the last "
    "cache; 1.01 to 1.03 times at 8192",
    tiles=TILES,
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    rules=RULES,
    space={**SPACE, "TN": (4, 8, 16)},
    whole="ABC",
    made_for="gpu",
)
