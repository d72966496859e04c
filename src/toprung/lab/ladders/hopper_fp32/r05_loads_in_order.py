"""Rung 5: loads of fragments in their order, sums in the other bank, one running address."""

from dataclasses import replace

from toprung.kernels.hopper_sgemm.config import ring
from toprung.lab.ladders.hopper_fp32.r02_last_wave import CUT
from toprung.lab.ladders.hopper_fp32.r04_instruction_cache import RUNG as BEFORE
from toprung.tile import Tile

RUNG = replace(
    BEFORE,
    idea="loads in order, sums in the other bank",
    expects="loads of a k one by one among multiply-adds, none shortly before its use; half the conflicts, and a loop of eight "
    "instructions fewer: 1.01 to 1.025 times rung 4",
    tiles={"gpu": (Tile(BM=128, BN=256, BK=14, TM=8, TN=16, STAGES=5),)},
    local_bytes=ring,
    defines={**CUT, "WAIT_AT": 7, "IN_ORDER": 1, "PAD": 6},
)
