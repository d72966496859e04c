"""Rung 2: as many work-items as the device can keep busy, whatever the size."""

from dataclasses import replace

from toprung.lab.ladders.matvec.r01_row_per_item import RUNG as BEFORE
from toprung.lab.rung import Switch

RUNG = replace(
    BEFORE,
    idea="a grid of its own size",
    expects="nothing by itself: it frees the number of work-groups from the number of rows",
    switches=(Switch("GROUPS_PER_UNIT", "work-groups for each compute unit", values=(8, 1, 2, 32)),),
)
