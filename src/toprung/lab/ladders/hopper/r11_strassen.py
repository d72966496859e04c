"""Rung 11: seven products of half the size in place of eight."""

from toprung.lab.bounds.levels import TensorWork
from toprung.lab.ladders.hopper.r01_wgmma import needs
from toprung.lab.ladders.hopper.r06_three_products import THREE, TWO_CONSUMERS, ring, shaped
from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile


def seven_eighths(tile: Tile) -> TensorWork:
    """Seven products of half the sides, in place of eight."""
    all_eight = THREE(tile)
    return TensorWork(*(7 / 8 * n for n in (all_eight.multiply_adds, all_eight.shared_bytes, all_eight.fetched_bytes)))


RUNG = Rung(
    idea="a level of Strassen",
    expects="1.07 times rung 7 at 8192, 0.98 times at 4096 and 0.79 times at 2048: an eighth fewer operations against a splitting "
    "pass that writes seven quarters in place of four, and a launch that reads seven results. At 16384 1.10 times, under "
    "load, too. Its error is twice rung 7's in the norm where signs are random",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=32, TM=2, TN=32, STAGES=6),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp32x-strassen",
    method="gemm_strassen",
    tensor=seven_eighths,
    even=True,
    kernel="fp32x",
    defines=TWO_CONSUMERS,
    more_items=128,
    switches=(Switch("WINOGRAD", "Winograd's form of the seven products, not Strassen's", values=(0, 1)),),
    rules=shaped(2),
    space={"BN": (64, 128), "STAGES": (4, 5, 6)},
)
