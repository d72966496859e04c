"""Rung 7: the product's launch hides behind the splitting pass; the guard is part of it."""

from toprung.lab.ladders.hopper.r01_wgmma import needs
from toprung.lab.ladders.hopper.r06_three_products import THREE, TWO_CONSUMERS, ring, shaped
from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile

RUNG = Rung(
    idea="guarded, overlapped launches",
    expects="two launches' gaps of 2 to 4 µs each hide: 1.1 times rung 6 at 1024, 1.02 at 2048, nothing that can be seen above",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=32, TM=2, TN=32, STAGES=6),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp32x",
    method="gemm_fp32x",
    tensor=THREE,
    kernel="fp32x",
    defines=TWO_CONSUMERS,
    more_items=128,
    switches=(Switch("OVERLAP", "the product may begin before the splitting has ended", values=(1, 0)),),
    rules=shaped(2),
    space={"BN": (64, 128), "STAGES": (4, 5, 6)},
)
