"""Rung 6: vectors of VEC floats between global memory, local memory and registers."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r04_no_conflicts import shared_accesses
from toprung.lab.ladders.turing.r05_micro_1x4 import ONE_ROW
from toprung.lab.rung import Rung
from toprung.tile import EQUAL_SHARES, Rule, Tile, divides

RUNG = Rung(
    idea="vector loads",
    expects="a quarter of the load and store instructions at width 4; VEC multiplications an instruction where the CPU has vectors",
    tiles={
        "gpu": (Tile(BM=32, BN=32, BK=32, TM=1, TN=4, VEC=4, PADA=1),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=1, TN=16, VEC=16, PADA=1),),
    },
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=32, TM=1, TN=4, VEC=4, PADA=0),
    rules=(
        ONE_ROW,
        Rule("TN = VEC", "a work-item owns one vector of a row", lambda t, d: t.TN == t.VEC),
        divides("BK", "VEC", "a load of A takes VEC elements of one row of the tile"),
        divides("LA", "VEC", "every work-item packs whole vectors of A"),
        divides("LB", "VEC", "and of B"),
        *EQUAL_SHARES,
    ),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (16, 32), "TN": (2, 4, 8, 16), "VEC": (2, 4, 8, 16), "PADA": (0, 1)},
    whole="ABC",
)
