"""Rung 6: lanes of a sub-group add each other's registers."""

from collections.abc import Mapping
from dataclasses import replace

from toprung.lab.ladders.matvec.r04_tree import tree
from toprung.lab.ladders.matvec.r05_sequential import RUNG as BEFORE
from toprung.lab.rung import SHUFFLE, Options
from toprung.tile import Rule, Tile


def sums(tile: Tile, options: Options) -> Mapping[str, float]:
    """Waits of a sum between lanes and sub-groups, less the exchanges, which no probe has; without them those of a tree."""
    levels = tile.DN.bit_length() - 1
    return {"shared": 1, "FADD": levels, "barrier": 2} if options.get("SHUFFLE") else tree(tile, options)


RUNG = replace(
    BEFORE,
    idea="sub-group reduction",
    expects="three barriers a row in place of eleven: some 1.1 times at short rows; nothing where lanes cannot exchange values",
    waits=sums,
    rules=(
        *BEFORE.rules,
        Rule(
            "DN is whole sub-groups, as many as one has lanes at most",
            "every lane of a sub-group must take part in an exchange, and one sub-group adds the sums of all",
            lambda t, d: d.subgroup is None or (t.DN % d.subgroup == 0 and t.DN <= d.subgroup**2),
        ),
    ),
    switches=(SHUFFLE,),
)
