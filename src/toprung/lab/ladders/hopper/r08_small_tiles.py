"""Rung 8: small tiles, for problems that large ones do not spread over the device."""

from dataclasses import replace

from toprung.lab.ladders.hopper import r07_overlap
from toprung.lab.ladders.hopper.r01_wgmma import ARCH
from toprung.lab.ladders.hopper.r06_three_products import shaped
from toprung.tile import Tile

RUNG = replace(
    r07_overlap.RUNG,
    idea="small tiles for small problems",
    expects="1.3 times rung 7 at 1024, where its tiles leave half of the multiprocessors idle; from 2048 on 0.6 to 0.8 times",
    tiles={"gpu": (Tile(BM=64, BN=64, BK=32, TM=2, TN=16, STAGES=8),)},
    defines={**ARCH, "CONSUMERS": 1, "GROUP": 16, "PRODUCER_REGISTERS": 0, "CONSUMER_REGISTERS": 0},
    rules=shaped(1),
    space={"BN": (32, 64, 128), "STAGES": (6, 8, 10)},
)
