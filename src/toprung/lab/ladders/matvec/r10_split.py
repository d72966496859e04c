"""Rung 10: rows split over several work-groups where there are few of them."""

from dataclasses import replace

from toprung.lab.ladders.matvec.r09_rows import RULES, SPACE
from toprung.lab.rung import SHUFFLE, Rung
from toprung.tile import Tile, partial_sums

RUNG = Rung(
    idea="split rows",
    expects="every compute unit has work at 1100×100 000, where rung 9 has 35 work-groups: four times there; nothing at many rows",
    tiles={
        "gpu": (Tile(BM=32, BN=128, TM=4, TN=4, VEC=4, SPLIT_K=64),),
        "cpu": tuple(
            replace(t, SPLIT_K=4) for t in (Tile(BM=16, BN=16, TM=4, TN=16, VEC=16), Tile(BM=64, BN=64, TM=4, TN=4, VEC=4))
        ),
    },
    local_bytes=partial_sums,
    rules=RULES,
    space={**SPACE, "SPLIT_K": (1, 4, 16, 64)},
    whole="x",
    switches=(SHUFFLE,),
)
