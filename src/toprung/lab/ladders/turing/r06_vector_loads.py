"""Rung 6: vectors of VEC floats between global memory, local memory and registers."""

from dataclasses import replace

from toprung.lab.ladders.turing.r05_micro_1x4 import RUNG as BEFORE
from toprung.tile import Rule, Tile, divides

RUNG = replace(
    BEFORE,
    idea="vector loads",
    expects="a quarter of the load and store instructions at width 4; VEC multiplications an instruction where the CPU has vectors",
    tiles={
        "gpu": (Tile(BM=32, BN=32, BK=32, TM=1, TN=4, VEC=4, PADA=1),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=1, TN=16, VEC=16, PADA=1),),
    },
    published=Tile(BM=32, BN=32, BK=32, TM=1, TN=4, VEC=4, PADA=0),
    rules=(
        *BEFORE.rules,
        Rule("TN = VEC", "a work-item owns one vector of a row", lambda t, d: t.TN == t.VEC),
        divides("BK", "VEC", "a load of A takes VEC elements of one row of the tile"),
        divides("LA", "VEC", "every work-item loads whole vectors of A"),
        divides("LB", "VEC", "and of B"),
    ),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (16, 32), "TN": (2, 4, 8, 16), "VEC": (2, 4, 8, 16), "PADA": (0, 1)},
)
