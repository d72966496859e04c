"""Rung 12: the multiplications of a thread tile as the ox ploughs."""

from toprung.lab.ladders.turing.r07_micro_4x4 import shared_accesses
from toprung.lab.ladders.turing.r09_warp_tiles import RULES, SPACE
from toprung.lab.ladders.turing.r11_double_buffer import INDEX32, two_buffers
from toprung.lab.rung import Rung
from toprung.tile import Tile

TILES = {
    "gpu": (Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4, PADA=4),),
    "cpu": (Tile(BM=32, BN=32, BK=8, WM=16, WN=32, TM=4, TN=16, VA=4, VB=16, PADA=4),),
}

RUNG = Rung(
    idea="boustrophedon order",
    expects="from registers alone this order of 8×8 is much the faster one on current GPUs, since neighbours share an operand; "
    "in a kernel the compiler orders anew, so between nothing and a tenth; on a CPU it takes vectors apart: a large loss",
    tiles=TILES,
    local_bytes=two_buffers,
    shared_accesses=shared_accesses,
    rules=RULES,
    space={**SPACE, "TN": (4, 8, 16)},
    whole="ABC",
    switches=(INDEX32,),
    made_for="gpu",
)
