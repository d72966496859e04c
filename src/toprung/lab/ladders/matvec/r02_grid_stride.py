"""Rung 2: as many work-items as the device can keep busy, whatever the size."""

from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile

RUNG = Rung(
    idea="a grid of its own size",
    expects="nothing by itself: it frees the number of work-groups from the number of rows",
    tiles={"gpu": (Tile(BM=256, BN=1),), "cpu": (Tile(BM=64, BN=1),)},
    published=Tile(BM=512, BN=1),
    space={"BM": (32, 64, 128, 256, 512)},
    switches=(Switch("GROUPS_PER_UNIT", "work-groups for each compute unit", values=(8, 1, 2, 32)),),
)
