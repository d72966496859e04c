"""Rung 5: A transposed beforehand, tiles of any depth."""

from toprung.lab.ladders.kepler.r04_wide_types import ONE_VECTOR
from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile

EQUAL_SHARES = (
    Rule(
        "LA · DM · DN · VA = BM · BK",
        "every work-item fetches the same number of pieces of A's tile",
        lambda t, d: t.LA * t.work_items * (t.VA or 1) == t.BM * (t.BK or 0),
    ),
    Rule(
        "LB · DM · DN · VB = BK · BN",
        "every work-item fetches the same number of pieces of B's tile",
        lambda t, d: t.LB * t.work_items * (t.VB or 1) == (t.BK or 0) * t.BN,
    ),
)


def padded_tiles(tile: Tile) -> int:
    """Bytes of As, with its padding, and Bs."""
    bk = tile.BK or 0
    return 4 * (tile.BM * (bk + (tile.PADA or 0)) + bk * tile.BN)


RUNG = Rung(
    idea="A transposed, rectangular tiles",
    expects="little by itself, and the loads lose their width: it frees BK, which the next rungs need",
    tiles={
        "gpu": (Tile(BM=64, BN=64, BK=16, TM=8, TN=4, VEC=4, PADA=1),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=8, TN=16, VEC=16, PADA=1),),
    },
    local_bytes=padded_tiles,
    published=Tile(BM=32, BN=32, BK=16, TM=8, TN=1, VEC=1, PADA=2),
    rules=(ONE_VECTOR, *EQUAL_SHARES),
    space={
        "BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (8, 16, 32), "TM": (1, 2, 4, 8), "TN": (1, 4, 8, 16), "VEC": (1, 4, 8, 16),
        "PADA": (0, 1),
    },
    whole="ABC",
    transposed="A",
)  # fmt: skip
