"""Rung 17: the multiplications go down two columns at a time, in tiles twice as deep."""

from dataclasses import replace

from toprung.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.ladders.turing.r09_warp_tiles import RULES as WARPS
from toprung.ladders.turing.r09_warp_tiles import SPACE
from toprung.ladders.turing.r12_boustrophedon import TILES as FLAT
from toprung.rung import Rung
from toprung.tile import Rule

TILES = {**FLAT, "gpu": tuple(replace(tile, BK=16) for tile in FLAT["gpu"])}
RULES = (*WARPS, Rule("TN % 2 = 0", "columns go in pairs", lambda t, d: (t.TN or 1) % 2 == 0))

RUNG = Rung(
    idea="pairs of columns",
    expects="compiled for CUDA, the loop has 76 cycles in which operands conflict for each 512 multiplications in place of 115, "
    "and 4 instructions fewer: 1.06 times rung 16; through OpenCL, whose compiler orders anew, 1.02 to 1.03 times",
    tiles=TILES,
    local_bytes=tiles_bytes,
    rules=RULES,
    space={**SPACE, "TN": (4, 8, 16)},
    whole="ABC",
)
