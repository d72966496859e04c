"""Rung 5: blocks that stay and take tile after tile, band by band."""

from dataclasses import replace

from toprung.lab.ladders.hopper import r04_clusters
from toprung.lab.rung import Switch

RUNG = replace(
    r04_clusters.RUNG,
    idea="persistent blocks, bands of tiles",
    expects="the next tile's operands arrive while sums are written, and neighbours in time are neighbours in memory: 1.05 to 1.1 "
    "times rung 4 from 4096 on; nothing below, where a block has one tile",
    switches=(
        r04_clusters.CLUSTER,
        Switch("GROUP", "height of a band, in clusters; 1 takes the tiles row by row", values=(8, 1)),
        Switch("PERSISTENT", "1: as many blocks as there are multiprocessors; 0: one for each tile", values=(1, 0)),
    ),
)
