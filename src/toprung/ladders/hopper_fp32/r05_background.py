"""Rung 5: operands laid out in the background of the product."""

from dataclasses import replace

from toprung.ladders.hopper_fp32.r04_instruction_cache import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="operands laid out in the background",
    expects="of the layout pass, 36 us at 4096 with A stored M×K, 5 to 8 us remain: 1.01 times rung 4 there and at 8192; at 2048, "
    "where blocks begin all along K, no gain",
    defines={**BEFORE.defines, "LAY": 1},
)
