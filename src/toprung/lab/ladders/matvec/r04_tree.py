"""Rung 4: partial sums added in a tree over neighbours."""

from collections.abc import Mapping
from dataclasses import replace

from toprung.lab.ladders.matvec.r03_coalesced import RUNG as BEFORE
from toprung.lab.rung import Options
from toprung.tile import POWER_OF_TWO, Tile


def tree(tile: Tile, options: Options) -> Mapping[str, float]:
    """Waits of a sum over DN partial sums in a tree: a read, an addition and a barrier for each level, in rung 5, too."""
    levels = tile.DN.bit_length() - 1
    return {"shared": levels, "FADD": levels, "barrier": levels + 2}


RUNG = replace(
    BEFORE,
    idea="tree reduction",
    expects="log2(DN) steps in place of DN at every row's end: three times at 1100 elements a row, little at 32768",
    waits=tree,
    rules=(POWER_OF_TWO,),
)
