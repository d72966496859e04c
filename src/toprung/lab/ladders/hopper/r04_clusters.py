"""Rung 4: wider tiles, two consumers, and clusters whose blocks fetch for each other."""

from dataclasses import replace

from toprung.lab.ladders.hopper import r02_copy_engine
from toprung.lab.ladders.hopper.r01_wgmma import shaped
from toprung.lab.rung import Switch
from toprung.tile import Rule, Tile

CLUSTER = Switch("CLUSTER", "blocks, one below the other, that fetch each tile of B together", values=(2, 1))
TWO = Rule("BM = 128", "two consumer warpgroups own 64 rows each", lambda t, d: t.BM == 128)

RUNG = replace(
    r02_copy_engine.RUNG,
    idea="wide tiles, clusters",
    expects="a third less shared memory is read for each product, and half of B's tile crosses the L2 cache: 1.1 to 1.25 times "
    "rung 3",
    tiles={"gpu": (Tile(BM=128, BN=256, BK=64, TM=2, TN=64, STAGES=4),)},
    more_items=128,
    switches=(CLUSTER,),
    rules=(*shaped(1, 256), TWO, r02_copy_engine.DEEP),
    space={"BN": (128, 192, 256), "STAGES": (3, 4, 5, 6)},
)
