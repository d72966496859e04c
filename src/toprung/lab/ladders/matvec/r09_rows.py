"""Rung 9: teams within a sub-group, several rows each."""

from toprung.lab.rung import SHUFFLE, Rung
from toprung.tile import POWER_OF_TWO, TEAM_IN_SUBGROUP, Rule, Tile, partial_sums

RUNG = Rung(
    idea="rows per work-group",
    expects="short rows keep a team busy (1100 elements are 9 turns of 32 lanes) and no barrier is left: 1.1 to 1.5 times at 1100 "
    "elements a row; a loss where there are few, long rows",
    tiles={
        "gpu": (Tile(BM=32, BN=128, TM=4, TN=4, VEC=4),),
        "cpu": (Tile(BM=16, BN=16, TM=4, TN=16, VEC=16), Tile(BM=64, BN=64, TM=4, TN=4, VEC=4)),
    },
    local_bytes=partial_sums,
    rules=(
        POWER_OF_TWO,
        TEAM_IN_SUBGROUP,
        Rule("TN = VEC", "a work-item takes one vector of each row a turn", lambda t, d: t.TN == t.VEC),
    ),
    space={"BM": (4, 8, 16, 32), "BN": (16, 32, 64, 128), "TM": (1, 2, 4, 8), "TN": (1, 4, 8, 16), "VEC": (1, 4, 8, 16)},
    whole="x",
    switches=(SHUFFLE,),
)
