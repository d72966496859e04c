"""The tunable block kernel: tiles as data, the switches of its source, and what a search may try."""

from dataclasses import replace
from pathlib import Path

from toprung.kernels.blocks import GROUP_M, LAYOUT_SWITCHES, RESIDENT, RULES, square, tiles_bytes
from toprung.kernels.record import LibraryKernel, Switch
from toprung.tile import Tile

RECORD = LibraryKernel(
    idea="one tunable source for every layout and shape",
    expects="the last rungs' speed where the block fits the shape, and in all four transposes",
    tiles={
        "gpu": (square(128, 8, 8, (32, 64)), square(64, 8, 4, (16, 32)), square(32, 8, 4, (16, 32))),
        "cpu": (
            Tile(BM=32, BN=64, BK=16, WM=16, WN=64, TM=8, TN=32, VEC=16, VA=4, VB=4, STAGES=1, PADA=0, PADB=0),
            square(16, 8, 4, (16, 16)),
        ),
    },
    local_bytes=tiles_bytes,
    rules=RULES,
    space={
        "BM": (16, 32, 64, 128, 256), "BN": (16, 32, 64, 128, 256), "BK": (4, 8, 16, 32), "WM": (8, 16, 32, 64, 128),
        "WN": (8, 16, 32, 64, 128), "TM": (2, 4, 8, 16), "TN": (2, 4, 8, 16), "VEC": (4, 2), "STAGES": (1, 2), "PADA": (0, 4),
        "PADB": (0, 4), "SPLIT_K": (1, 2, 3, 4, 6, 8, 12, 16),
    },
    switches=(
        *LAYOUT_SWITCHES,
        Switch("AHEAD", "vectors are read from local memory one k ahead", values=(1, 0), searched=True),
        Switch("ORDER", "multiplications as the ox ploughs", searched=True),
        RESIDENT,
        GROUP_M,
    ),
    source=Path(__file__).with_name("tiled.cl"),
    routine="gemm",
)  # fmt: skip
"""VA, VB and VC are not a search's: accesses are as wide as operands and tile allow."""

SEARCHED = {s.name: s.values for s in RECORD.switches if s.searched}
"""Switches that are a search's to choose; the others follow from the product."""

ON_CPU = {
    "BM": (8, 16, 32, 64), "BN": (16, 32, 64, 128), "BK": (8, 16, 32, 64), "WM": (8, 16, 32, 64), "WN": (16, 32, 64),
    "TM": (4, 8, 16), "TN": (8, 16, 32), "VEC": (16, 8, 4), "STAGES": (1,), "PADA": (0,), "PADB": (0,), "SPLIT_K": (1,),
    "AHEAD": (0, 1), "ORDER": (0, 1), "GROUP_M": (8, 1), "RESIDENT": (0,),
}  # fmt: skip
"""The space on a CPU. A work-item is a loop over vectors there and warps are an order of them: wide pieces, and one buffer, because
a second would hide no latency."""

SEARCHED_BLOCKS = ("BM", "BN", "BK", "WM", "WN", "TM", "TN")
"""Axes of which a search starts with every legal combination."""

SIZES = tuple(replace(RECORD.tiles["gpu"][0], BM=n, BN=n, BK=8) for n in (32, 64, 128))
"""Blocks from which the K slices follow that give every compute unit something to do."""
