"""Rung 5: the tree folds the partial sums in halves."""

from toprung.lab.ladders.matvec.r03_coalesced import PUBLISHED, SPACE, TILES
from toprung.lab.ladders.matvec.r04_tree import tree
from toprung.lab.rung import Rung
from toprung.tile import POWER_OF_TWO, partial_sums

RUNG = Rung(
    idea="sequential addressing",
    expects="no bank conflicts, and the idle lanes are whole warps: some 1.3 times at short rows",
    tiles=TILES,
    local_bytes=partial_sums,
    waits=tree,
    published=PUBLISHED,
    rules=(POWER_OF_TWO,),
    space=SPACE,
)
