"""A few dot products with every column of a large matrix, as it lies."""

from toprung.blas.kernel import LibraryKernel
from toprung.blas.kernels.rows import FEW
from toprung.ladders.matvec.r11_transposed import column_sums
from toprung.tile import Rule, Tile

KERNEL = LibraryKernel(
    idea="the large operand once, all columns side by side",
    expects="the speed of memory, whatever the small side",
    tiles={
        "gpu": (Tile(BM=128, BN=32, TM=4, TN=4, VA=4, KU=4),),
        "cpu": (Tile(BM=64, BN=4, TM=4, TN=4, VA=4, KU=4),),
    },
    local_bytes=column_sums,
    rules=(
        Rule("TM = VA", "a work-item owns one vector of columns", lambda t, d: t.TM == t.VA),
        Rule("TN = KU", "and takes KU rows of X a turn", lambda t, d: t.TN == t.KU),
    ),
    switches=(FEW,),
    routine="columns",
)
