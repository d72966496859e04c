"""Rung 7: the product's launch hides behind the splitting pass; the guard is part of it."""

from dataclasses import replace

from toprung.lab.ladders.hopper import r06_three_products
from toprung.lab.rung import Switch

RUNG = replace(
    r06_three_products.RUNG,
    idea="guarded, overlapped launches",
    expects="two launches' gaps of 2 to 4 µs each hide: 1.1 times rung 6 at 1024, 1.02 at 2048, nothing that can be seen above",
    switches=(Switch("OVERLAP", "the product may begin before the splitting has ended", values=(1, 0)),),
)
