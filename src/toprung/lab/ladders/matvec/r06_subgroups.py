"""Rung 6: lanes of a sub-group add each other's registers."""

from collections.abc import Mapping

from toprung.lab.ladders.matvec.r03_coalesced import PUBLISHED, SPACE, TILES
from toprung.lab.ladders.matvec.r04_tree import tree
from toprung.lab.rung import SHUFFLE, Options, Rung
from toprung.tile import POWER_OF_TWO, Rule, Tile, partial_sums

WHOLE_SUBGROUPS = Rule(
    "DN is whole sub-groups, as many as one has lanes at most",
    "every lane of a sub-group must take part in an exchange, and one sub-group adds the sums of all",
    lambda t, d: d.subgroup is None or (t.DN % d.subgroup == 0 and t.DN <= d.subgroup**2),
)


def sums(tile: Tile, options: Options) -> Mapping[str, float]:
    """Waits of a sum between lanes and sub-groups, less the exchanges, which no probe has; without them those of a tree."""
    levels = tile.DN.bit_length() - 1
    return {"shared": 1, "FADD": levels, "barrier": 2} if options.get("SHUFFLE") else tree(tile, options)


RUNG = Rung(
    idea="sub-group reduction",
    expects="three barriers a row in place of eleven: some 1.1 times at short rows; nothing where lanes cannot exchange values",
    tiles=TILES,
    local_bytes=partial_sums,
    waits=sums,
    published=PUBLISHED,
    rules=(POWER_OF_TWO, WHOLE_SUBGROUPS),
    space=SPACE,
    switches=(SHUFFLE,),
)
