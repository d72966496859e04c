"""Rung 17: the blocks of the last wave are cut along K."""

from dataclasses import replace

from toprung.lab.ladders.turing.r16_bands import RUNG as BEFORE
from toprung.tile import Rule

FLAT = BEFORE.tiles["gpu"]
DEEP = tuple(replace(tile, BK=16) for tile in FLAT)

RUNG = replace(
    BEFORE,
    idea="the last wave",
    expects="an H200 runs 264 work-groups at one time; 4096 has 3.88 times as many blocks, so that 3 % of the time goes by in a "
    "last wave with holes; 0.5 % are spent on adding parts and on a launch: 1.02 times at 4096. At 8192, 15.5 waves, the half full "
    "wave has the multiprocessors almost to itself: 1.00 to 1.01 times. At 2048, 0.97 of a wave, nothing is cut. At 1024, a "
    "quarter of a wave, 1.3 to 1.8 times. Pairs of columns: 76 cycles in which operands conflict for each 512 multiplications in "
    "place of 115, another 1.06 times as CUDA",
    tiles={**BEFORE.tiles, "gpu": (*DEEP, *FLAT)},
    rules=(
        *BEFORE.rules,
        Rule("TN % 2 = 0", "columns go in pairs", lambda t, d: (t.TN or 1) % 2 == 0),
        Rule(
            "BK ≤ 8 on SM 8.0",
            "there the loads of a deeper tile are kept in memory, beside 64 sums with two work-groups a multiprocessor",
            lambda t, d: d.arch != "sm_80" or (t.BK or 1) <= 8,
        ),
    ),
    method="gemm_last_wave",
    even=True,
)
