"""Rung 5: loads of fragments that stay in their order."""

from dataclasses import replace

from toprung.ladders.hopper_fp32.r04_instruction_cache import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="loads of fragments in their order",
    expects="six loads of a k one by one among multiply-adds, none shortly before its use: 1.01 to 1.02 times rung 4",
    defines={**BEFORE.defines, "IN_ORDER": 1},
)
