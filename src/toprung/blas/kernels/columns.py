"""A few dot products with every column of a large matrix, as it lies."""

from toprung.blas.kernel import LibraryKernel
from toprung.blas.kernels.rows import FEW, SMALL
from toprung.tile import Rule, Tile, divides


def sums_and_piece(tile: Tile) -> int:
    """Bytes of DN sums for each of BM columns, and of a piece of Y with as many rows as there may be, padded."""
    return 4 * tile.DN * tile.BM + 4 * tile.BN * (SMALL[-1] + 4)


KERNEL = LibraryKernel(
    idea="the large operand once, all columns side by side",
    expects="the speed of memory, whatever the small side",
    tiles={
        "gpu": (Tile(BM=128, BN=64, TM=4, TN=16, VA=4, KU=4),),
        "cpu": (Tile(BM=64, BN=16, TM=4, TN=16, VA=4, KU=4),),
    },
    local_bytes=sums_and_piece,
    rules=(
        Rule("TM = VA", "a work-item owns one vector of columns", lambda t, d: t.TM == t.VA),
        divides("TN", "KU", "and takes KU rows of X at a time"),
    ),
    switches=(FEW,),
    routine="columns",
)
