"""Rung 9: the next tile is on its way while this one is computed with."""

from dataclasses import replace

from toprung.lab.ladders.kepler.r07_wide_loads import RUNG as WIDE_LOADS

RUNG = replace(
    WIDE_LOADS,
    idea="software prefetch",
    expects="one barrier a tile in place of two, and loads in flight during the arithmetic; a loss where twice the local memory "
    "halves the work-groups (it did on Kepler)",
    local_bytes=lambda tile: 2 * WIDE_LOADS.local_bytes(tile),
)
