"""Rung 6: neighbouring lanes have neither rows nor columns in common."""

from dataclasses import replace
from functools import partial

from toprung.lab.ladders.hopper_fp32.r01_copy_engine import shared_accesses
from toprung.lab.ladders.hopper_fp32.r05_loads_in_order import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="lanes apart",
    expects="the same loop, instruction by instruction; the loads of A in four turns of shared memory, not two: 1.01 to 1.02 "
    "times rung 5",
    shared_accesses=partial(shared_accesses, apart=True),
    defines={**BEFORE.defines, "APART": 1, "PAD": 0},
)
