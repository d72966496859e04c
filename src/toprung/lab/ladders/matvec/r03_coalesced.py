"""Rung 3: a work-group shares a row; one work-item adds the partial sums."""

from toprung.lab.rung import Rung
from toprung.tile import Tile, partial_sums

RUNG = Rung(
    idea="coalesced reads",
    expects="a read of a warp takes 4 pieces of memory in place of 32: several times; rows of few elements lose to the serial sum",
    tiles={"gpu": (Tile(BM=1, BN=512), Tile(BM=1, BN=256)), "cpu": (Tile(BM=1, BN=64),)},
    local_bytes=partial_sums,
    waits=lambda tile, options: {"shared": 1, "FADD": tile.work_items, "barrier": 2},
    published=Tile(BM=1, BN=512),
    space={"BN": (32, 64, 128, 256, 512)},
)
