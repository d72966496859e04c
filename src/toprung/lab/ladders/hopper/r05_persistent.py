"""Rung 5: blocks that stay and take tile after tile, band by band."""

from toprung.lab.bounds.levels import tensor_work
from toprung.lab.ladders.hopper.r01_wgmma import ARCH, needs, ring, shaped
from toprung.lab.ladders.hopper.r02_copy_engine import DEEP
from toprung.lab.ladders.hopper.r04_clusters import CLUSTER, TWO
from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile

RUNG = Rung(
    idea="persistent blocks, bands of tiles",
    expects="the next tile's operands arrive while sums are written, and neighbours in time are neighbours in memory: 1.05 to 1.1 "
    "times rung 4 from 4096 on; nothing below, where a block has one tile",
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
    switches=(
        CLUSTER,
        Switch("GROUP", "height of a band, in clusters; 1 takes the tiles row by row", values=(8, 1)),
        Switch("PERSISTENT", "1: as many blocks as there are multiprocessors; 0: one for each tile", values=(1, 0)),
    ),
    rules=(*shaped(1, 256), TWO, DEEP),
    space={"BN": (128, 192, 256), "STAGES": (3, 4, 5, 6)},
)
