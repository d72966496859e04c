"""Copies for operands and results that no product kernel can address."""

from toprung.blas.kernel import LibraryKernel
from toprung.tile import Tile

KERNEL = LibraryKernel(
    idea="any strides to any others",
    expects="the speed of memory where both sides run along their columns",
    tiles={"gpu": (Tile(BM=1, BN=256), Tile(BM=1, BN=32)), "cpu": (Tile(BM=1, BN=64), Tile(BM=1, BN=1))},
    routine="move",
)
