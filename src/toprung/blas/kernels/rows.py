"""A few dot products with every row of a large matrix: a short side, or a vector."""

from toprung.blas.kernel import LibraryKernel
from toprung.ladders.matvec.r03_coalesced import partial_sums
from toprung.ladders.matvec.r04_tree import POWER_OF_TWO
from toprung.ladders.matvec.r06_subgroups import SHUFFLE
from toprung.ladders.matvec.r09_rows import RULES as TEAMS
from toprung.rung import Switch
from toprung.tile import Rule, Tile

SMALL = (1, 2, 4, 8, 16)
"""Rows of the small operand that there is a kernel for; between them the next larger is taken."""

FEW = Switch("SMALL", "rows of the small operand", values=SMALL)

KERNEL = LibraryKernel(
    idea="the large operand once, row by row",
    expects="the speed of memory, whatever the small side",
    tiles={
        "gpu": (Tile(BM=32, BN=128, TM=4, TN=4, VA=4, VB=4),),
        "cpu": (Tile(BM=64, BN=4, TM=4, TN=4, VA=4, VB=4), Tile(BM=4, BN=4, TM=4, TN=4, VA=4, VB=4)),
    },
    local_bytes=partial_sums,
    rules=(
        POWER_OF_TWO,
        TEAMS[1],
        Rule("TN % VA = 0", "a work-item takes one vector of each row a turn", lambda t, d: (t.TN or 1) % (t.VA or 1) == 0),
    ),
    switches=(SHUFFLE, FEW),
    routine="rows",
)
