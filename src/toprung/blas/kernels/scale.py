"""What α = 0 and K = 0 leave to do."""

from toprung.blas.kernel import LibraryKernel
from toprung.tile import Tile

KERNEL = LibraryKernel(
    idea="β·C alone",
    expects="the speed of memory",
    tiles={"gpu": (Tile(BM=1, BN=128), Tile(BM=1, BN=32)), "cpu": (Tile(BM=1, BN=64), Tile(BM=1, BN=1))},
    routine="scale",
)
