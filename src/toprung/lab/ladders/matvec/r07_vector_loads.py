"""Rung 7: vectors of VEC elements."""

from dataclasses import replace

from toprung.lab.ladders.matvec.r06_subgroups import RUNG as BEFORE
from toprung.tile import Rule, Tile

RUNG = replace(
    BEFORE,
    idea="vector loads",
    expects="a quarter of the loads, each four times as long, so more bytes in flight: 1.2 to 2 times until memory is the limit",
    tiles={
        "gpu": (Tile(BM=1, BN=2048, TN=4, VEC=4), Tile(BM=1, BN=1024, TN=4, VEC=4)),
        "cpu": (Tile(BM=1, BN=64, TN=16, VEC=16),),
    },
    published=None,
    rules=(*BEFORE.rules, Rule("TN = VEC", "a work-item takes one vector a turn", lambda t, d: t.TN == t.VEC)),
    space={"BN": (64, 128, 256, 1024, 2048), "TN": (1, 2, 4, 8, 16), "VEC": (1, 2, 4, 8, 16)},
    whole="x",
)
