"""Blocks of the kernel for groups, and its source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toprung.backends.base import Source
from toprung.kernels.record import joined


@dataclass(frozen=True)
class GroupBlock:
    """A block that owns BM×BN of C at a time.

    Attributes
    ----------
    BK : of K that is in shared memory at a time
    TM, TN : rows and columns of C that a thread owns
    resident : blocks that an SM has registers for
    efficiency : share of the lanes' multiply-adds that it reaches where nothing else limits: that of ``blocks.BLOCKS`` for such
        a tile, or one between its neighbours there; not measured in this kernel
    """

    BM: int
    BN: int
    BK: int
    TM: int
    TN: int
    resident: int
    efficiency: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM * self.BN // (self.TM * self.TN)

    def __str__(self) -> str:
        return f"{self.BM}×{self.BN}×{self.BK}"


BLOCKS = (
    GroupBlock(128, 128, 8, 8, 8, 1, 0.756),
    GroupBlock(64, 64, 16, 8, 4, 3, 0.69),
    GroupBlock(32, 64, 16, 4, 4, 4, 0.552),
    GroupBlock(32, 32, 16, 4, 4, 8, 0.467),
    GroupBlock(16, 64, 16, 4, 4, 8, 0.45),
)
"""Blocks that are weighed for a group. A thread has two sets of sums, which limit how many an SM has."""


def group_source(tile: GroupBlock, trans_a: int, trans_b: int, **macros: int) -> Source:
    """Return the kernel of a block, for operands that are transposed or not."""
    defines = {
        "BM": tile.BM, "BN": tile.BN, "BK": tile.BK, "TM": tile.TM, "TN": tile.TN, "RESIDENT": tile.resident,
        "TRANS_A": int(trans_a), "TRANS_B": int(trans_b), **macros,
    }  # fmt: skip
    title, text = f"tiled_group_{tile.BM}x{tile.BN}x{tile.BK}", joined(Path(__file__).parent, "tiled_group.cu")
    return Source("tiled_group/tiled_group", text, "tiled_group", defines, "cuda", title=title)
