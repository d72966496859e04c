"""Rung 7: vectors of VEC elements."""

from toprung.lab.ladders.matvec.r06_subgroups import WHOLE_SUBGROUPS, sums
from toprung.lab.rung import SHUFFLE, Rung
from toprung.tile import POWER_OF_TWO, Rule, Tile, partial_sums

RUNG = Rung(
    idea="vector loads",
    expects="a quarter of the loads, each four times as long, so more bytes in flight: 1.2 to 2 times until memory is the limit",
    tiles={
        "gpu": (Tile(BM=1, BN=2048, TN=4, VEC=4), Tile(BM=1, BN=1024, TN=4, VEC=4)),
        "cpu": (Tile(BM=1, BN=64, TN=16, VEC=16),),
    },
    local_bytes=partial_sums,
    waits=sums,
    rules=(
        POWER_OF_TWO,
        WHOLE_SUBGROUPS,
        Rule("TN = VEC", "a work-item takes one vector a turn", lambda t, d: t.TN == t.VEC),
    ),
    space={"BN": (64, 128, 256, 1024, 2048), "TN": (1, 2, 4, 8, 16), "VEC": (1, 2, 4, 8, 16)},
    whole="x",
    switches=(SHUFFLE,),
)
