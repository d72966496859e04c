"""Rung 3: a warpgroup that only fetches, one that only multiplies, and registers that change hands."""

from dataclasses import replace

from toprung.lab.ladders.hopper import r02_copy_engine
from toprung.lab.ladders.hopper.r01_wgmma import ring
from toprung.tile import Rule

RUNG = replace(
    r02_copy_engine.RUNG,
    idea="producer and consumer",
    expects="no barrier of all threads in the loop: 1.05 to 1.15 times rung 2",
    more_items=128,
    rules=(
        *r02_copy_engine.RUNG.rules,
        Rule(
            "two rings fit",
            "two blocks share a multiprocessor; each also costs 1 KiB",
            lambda t, d: 2 * (ring(t) + 1024) <= 228 * 1024,
        ),
    ),
    space={"STAGES": (2, 3)},
)
