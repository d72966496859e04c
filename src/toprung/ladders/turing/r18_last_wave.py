"""Rung 18: the blocks of the last wave are cut along K."""

from toprung.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.ladders.turing.r09_warp_tiles import SPACE
from toprung.ladders.turing.r17_pairs import RULES, TILES
from toprung.rung import Rung

RUNG = Rung(
    idea="the last wave",
    expects="an H200 runs 264 work-groups at one time; 4096 has 3.88 times as many blocks, so that 3 % of the time goes by in a "
    "last wave with holes; 0.5 % are spent on adding parts and on a launch: 1.02 times at 4096. At 8192, 15.5 waves, the half full "
    "wave has the multiprocessors almost to itself: 1.00 to 1.01 times. At 2048, 0.97 of a wave, nothing is cut. At 1024, a "
    "quarter of a wave, 1.3 to 1.8 times",
    tiles=TILES,
    local_bytes=tiles_bytes,
    rules=RULES,
    space={**SPACE, "TN": (4, 8, 16)},
    whole="ABC",
    method="gemm_last_wave",
)
