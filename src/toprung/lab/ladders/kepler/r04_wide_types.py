"""Rung 4: vectors in place of single floats."""

from dataclasses import replace

from toprung.lab.ladders.kepler.r02_local_tiles import RUNG as TILED
from toprung.tile import Rule, Tile

ONE_VECTOR = Rule("TN = VEC", "a work-item owns one vector of columns", lambda t, d: t.TN == t.VEC)

RUNG = replace(
    TILED,
    idea="wider data types",
    expects="1/TM + 1/VEC local reads a multiplication; VEC multiplications an instruction where the CPU has vectors",
    tiles={
        "gpu": (Tile(BM=32, BN=32, BK=32, TM=4, TN=4, VEC=4),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=8, TN=16, VEC=16),),
    },
    published=Tile(BM=32, BN=32, BK=32, TM=1, TN=4, VEC=4),
    rules=(*TILED.rules, ONE_VECTOR),
    space={
        "BM": (16, 32, 64),
        "BN": (16, 32, 64),
        "BK": (16, 32, 64),
        "TM": (1, 2, 4, 8),
        "TN": (2, 4, 8, 16),
        "VEC": (2, 4, 8, 16),
    },
)
