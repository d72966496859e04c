"""Rung 2: tiles of A and B staged in workgroup memory."""

from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile


def two_tiles(tile: Tile) -> int:
    """Bytes of As and Bs."""
    return 4 * (tile.BK or 0) * (tile.BM + tile.BN)


RUNG = Rung(
    idea="tiles in workgroup memory",
    expects="BK times fewer reads of buffers; on a CPU workgroup memory is ordinary memory, and the barriers only cost",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=16, BN=16, BK=16),)),
    local_bytes=two_tiles,
    rules=(
        Rule("BM = BN = BK", "each invocation stages elements of both tiles at its own place", lambda t, d: t.BM == t.BN == t.BK),
    ),
    space={"BM": (8, 16, 32), "BN": (8, 16, 32), "BK": (8, 16, 32)},
    whole="ABC",
)
