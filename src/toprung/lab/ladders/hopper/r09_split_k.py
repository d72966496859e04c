"""Rung 9: K in slices, for problems that have too few tiles of any useful size."""

from toprung.lab.ladders.hopper.r01_wgmma import needs
from toprung.lab.ladders.hopper.r06_three_products import THREE, TWO_CONSUMERS, ring, shaped
from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile

RUNG = Rung(
    idea="slices of K for few tiles",
    expects="at 512×512×16384, where rung 8 has 64 tiles and rung 7 has 16: 1.6 times rung 8 and 3.6 times rung 7. At 1024 two "
    "slices are 1.06 times rung 7 and 0.83 times rung 8: the third launch takes what they save. From 2048 on one slice, at "
    "rung 7's speed",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=32, TM=2, TN=32, STAGES=6),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp32x",
    method="gemm_fp32x",
    tensor=THREE,
    even=True,
    kernel="fp32x",
    defines=TWO_CONSUMERS,
    more_items=128,
    switches=(
        Switch("SLICES", "of K; 0: as many as there are multiprocessors for each tile", values=(0, 1)),
        Switch("OVERLAP", "a launch may begin before the one before it has ended", values=(1, 0)),
    ),
    rules=shaped(2),
    space={"BN": (64, 128), "STAGES": (4, 5, 6)},
)
