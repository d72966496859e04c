"""Rung 11: the transposed product as the matrix lies."""

from toprung.lab.rung import Rung
from toprung.tile import POWER_OF_TWO, Rule, Tile


def column_sums(tile: Tile) -> int:
    """Bytes of DN sums for each of BM elements."""
    return 4 * tile.DN * tile.BM


RUNG = Rung(
    idea="transposed product",
    expects="for Aᵀ·x as fast as rung 10 is for A·x, where the others must first transpose A (three times the traffic); for A·x "
    "the other way round",
    tiles={
        "gpu": (Tile(BM=128, BN=32, TM=4, TN=2, VA=4, KU=2, SPLIT_K=256),),
        "cpu": (Tile(BM=64, BN=16, TM=16, TN=4, VA=16, KU=4, SPLIT_K=4),),
    },
    local_bytes=column_sums,
    rules=(
        POWER_OF_TWO,
        Rule("TM = VA", "a work-item owns one vector of y", lambda t, d: t.TM == t.VA),
        Rule("TN = KU", "and takes KU rows of A a turn", lambda t, d: t.TN == t.KU),
    ),
    space={
        "BM": (32, 64, 128), "BN": (8, 16, 32), "TM": (1, 4, 8, 16), "TN": (1, 2, 4), "VA": (1, 4, 8, 16), "KU": (1, 2, 4),
        "SPLIT_K": (1, 4, 64),
    },
    transposed="A",
)  # fmt: skip
