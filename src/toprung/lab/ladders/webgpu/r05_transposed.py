"""Rung 5: A transposed beforehand, tiles of any depth."""

from toprung.lab.ladders.webgpu.r04_vec4 import ONE_VECTOR
from toprung.lab.rung import Rung
from toprung.tile import EQUAL_SHARES, Tile


def padded_tiles(tile: Tile) -> int:
    """Bytes of As, with its padding, and Bs."""
    bk = tile.BK or 0
    return 4 * (tile.BM * (bk + (tile.PADA or 0)) + bk * tile.BN)


RUNG = Rung(
    idea="A transposed, rectangular tiles",
    expects="little by itself, and A's loads lose their width: it frees BK, which the next rungs need",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=64, BN=64, BK=16, TM=8, TN=4, VEC=4, VB=4, PADA=1),)),
    local_bytes=padded_tiles,
    rules=(ONE_VECTOR, *EQUAL_SHARES),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (8, 16, 32), "TM": (1, 2, 4, 8), "PADA": (0, 1)},
    whole="ABC",
    transposed="A",
)
