"""Rung 4: partial sums added in a tree over neighbours."""

from toprung.lab.ladders.matvec.r03_coalesced import PUBLISHED, SPACE, TILES
from toprung.lab.rung import Rung
from toprung.tile import POWER_OF_TWO, partial_sums

RUNG = Rung(
    idea="tree reduction",
    expects="log2(DN) steps in place of DN at every row's end: three times at 1100 elements a row, little at 32768",
    tiles=TILES,
    local_bytes=partial_sums,
    published=PUBLISHED,
    rules=(POWER_OF_TWO,),
    space=SPACE,
)
