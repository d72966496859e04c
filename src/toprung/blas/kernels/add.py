"""The second pass of sums that were cut into slices."""

from toprung.blas.kernel import LibraryKernel
from toprung.rung import Switch
from toprung.tile import Tile


def sums_bytes(tile: Tile) -> int:
    """Bytes of a sum for each work-item, at VC = 4."""
    return 16 * tile.work_items


KERNEL = LibraryKernel(
    idea="sums of slices, always in the same order",
    expects="the speed of memory, and a launch",
    tiles={
        "gpu": (Tile(BM=8, BN=32), Tile(BM=1, BN=32)),
        "cpu": (Tile(BM=1, BN=64), Tile(BM=1, BN=1)),
    },
    local_bytes=sums_bytes,
    switches=(
        Switch("VC", "floats of an access to C", values=(1, 2, 4)),
        Switch("TIGHT", "C lies as a slice does, without gaps"),
        Switch("INDEX32", "places in C are counted with 32 bits"),
    ),
    routine="add",
)
