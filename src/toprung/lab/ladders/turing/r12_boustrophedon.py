"""Rung 12: the multiplications of a thread tile as the ox ploughs."""

from dataclasses import replace

from toprung.lab.ladders.turing.r11_double_buffer import RUNG as BEFORE
from toprung.tile import Tile

RUNG = replace(
    BEFORE,
    idea="boustrophedon order",
    expects="from registers alone this order of 8×8 is much the faster one on current GPUs, since neighbours share an operand; "
    "in a kernel the compiler orders anew, so between nothing and a tenth; on a CPU it takes vectors apart: a large loss",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4, PADA=4),),
        "cpu": (Tile(BM=32, BN=32, BK=8, WM=16, WN=32, TM=4, TN=16, VA=4, VB=16, PADA=4),),
    },
    published=None,
    space={**BEFORE.space, "TN": (4, 8, 16)},
    made_for="gpu",
)
