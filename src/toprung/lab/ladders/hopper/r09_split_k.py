"""Rung 9: K in slices, for problems that have too few tiles of any useful size."""

from dataclasses import replace

from toprung.lab.ladders.hopper import r06_three_products
from toprung.lab.rung import Switch

RUNG = replace(
    r06_three_products.RUNG,
    idea="slices of K for few tiles",
    expects="at 512×512×16384, where rung 8 has 64 tiles and rung 7 has 16: 1.6 times rung 8 and 3.6 times rung 7. At 1024 two "
    "slices are 1.06 times rung 7 and 0.83 times rung 8: the third launch takes what they save. From 2048 on one slice, at "
    "rung 7's speed",
    even=True,
    switches=(
        Switch("SLICES", "of K; 0: as many as there are multiprocessors for each tile", values=(0, 1)),
        Switch("OVERLAP", "a launch may begin before the one before it has ended", values=(1, 0)),
    ),
)
