"""Kernels that serve every family: β·C alone, the second pass of split-K, copies between any strides, and activations."""

from pathlib import Path

from toprung.gemm.epilogue import ACTIVATIONS
from toprung.kernels.record import LibraryKernel, Switch
from toprung.tile import Tile

HERE = Path(__file__).parent


def sums_bytes(tile: Tile) -> int:
    """Return the bytes of a sum for each work-item, at VC = 4."""
    return 16 * tile.work_items


ADD = LibraryKernel(
    idea="sums of K slices, always in the same order",
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
    source=HERE / "add.cl",
    routine="add",
)
"""The second pass of split-K."""

SCALE = LibraryKernel(
    idea="β·C alone",
    expects="the speed of memory",
    tiles={"gpu": (Tile(BM=1, BN=128), Tile(BM=1, BN=32)), "cpu": (Tile(BM=1, BN=64), Tile(BM=1, BN=1))},
    source=HERE / "scale.cl",
    routine="scale",
)
"""Scaling of C by β: all that α = 0 and K = 0 leave to do."""

MOVE = LibraryKernel(
    idea="any strides to any others",
    expects="the speed of memory where both sides run along their columns",
    tiles={"gpu": (Tile(BM=1, BN=256), Tile(BM=1, BN=32)), "cpu": (Tile(BM=1, BN=64), Tile(BM=1, BN=1))},
    switches=(Switch("ACTIVATION", "a function that each element goes through", values=(0, *ACTIVATIONS.values())),),
    source=HERE / "move.cl",
    routine="move",
)
"""Copies of operands and results that no product kernel can address, and activation functions of a result in place."""
