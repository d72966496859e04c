"""Rung 4: wider tiles, two consumers, and clusters whose blocks fetch for each other."""

from toprung.lab.bounds.levels import tensor_work
from toprung.lab.ladders.hopper.r01_wgmma import ARCH, needs, ring, shaped
from toprung.lab.ladders.hopper.r02_copy_engine import DEEP
from toprung.lab.rung import Rung, Switch
from toprung.tile import Rule, Tile

CLUSTER = Switch("CLUSTER", "blocks, one below the other, that fetch each tile of B together", values=(2, 1))
TWO = Rule("BM = 128", "two consumer warpgroups own 64 rows each", lambda t, d: t.BM == 128)

RUNG = Rung(
    idea="wide tiles, clusters",
    expects="a third less shared memory is read for each product, and half of B's tile crosses the L2 cache: 1.1 to 1.25 times "
    "rung 3",
    tiles={"gpu": (Tile(BM=128, BN=256, BK=64, TM=2, TN=64, STAGES=4),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp16",
    method="gemm_fp16",
    tensor=tensor_work,
    defines=ARCH,
    maps=True,
    more_items=128,
    switches=(CLUSTER,),
    rules=(*shaped(1, 256), TWO, DEEP),
    space={"BN": (128, 192, 256), "STAGES": (3, 4, 5, 6)},
)
