"""Rung 11: seven products of half the size in place of eight."""

from dataclasses import replace

from toprung.lab.bounds.levels import TensorWork
from toprung.lab.ladders.hopper import r06_three_products
from toprung.lab.rung import Switch
from toprung.tile import Tile


def seven_eighths(tile: Tile) -> TensorWork:
    """Seven products of half the sides, in place of eight."""
    all_eight = r06_three_products.THREE(tile)
    return TensorWork(*(7 / 8 * n for n in (all_eight.multiply_adds, all_eight.shared_bytes, all_eight.fetched_bytes)))


RUNG = replace(
    r06_three_products.RUNG,
    idea="a level of Strassen",
    expects="1.07 times rung 7 at 8192, 0.98 times at 4096 and 0.79 times at 2048: an eighth fewer operations against a splitting "
    "pass that writes seven quarters in place of four, and a launch that reads seven results. At 16384 1.10 times, under "
    "load, too. Its error is twice rung 7's in the norm where signs are random",
    precision="fp32x-strassen",
    method="gemm_strassen",
    tensor=seven_eighths,
    even=True,
    switches=(Switch("WINOGRAD", "Winograd's form of the seven products, not Strassen's", values=(0, 1)),),
)
