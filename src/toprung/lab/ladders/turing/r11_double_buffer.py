"""Rung 11: two buffers in local memory, one barrier a tile."""

from dataclasses import replace

from toprung.lab.ladders.turing.r10_register_prefetch import RUNG as BEFORE
from toprung.lab.rung import Switch

RUNG = replace(
    BEFORE,
    idea="double buffer",
    expects="one barrier a tile in place of two: a few per cent",
    local_bytes=lambda tile: 2 * BEFORE.local_bytes(tile),
    switches=(
        Switch(
            "INDEX32",
            "1: offsets of 32 bits, which leaves registers for two work-groups a multiprocessor; 0: of 64, for 2³¹ elements and "
            "more",
            values=(1, 0),
        ),
    ),
)
