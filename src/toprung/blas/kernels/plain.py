"""One work-item an element: always legal, never fast."""

from toprung.blas.kernel import LibraryKernel
from toprung.tile import Tile

KERNEL = LibraryKernel(
    idea="one work-item an element",
    expects="right on every device and for every shape; the others' yardstick",
    tiles={"gpu": (Tile(BM=1, BN=128), Tile(BM=1, BN=32)), "cpu": (Tile(BM=1, BN=64), Tile(BM=1, BN=1))},
    routine="gemm",
)
