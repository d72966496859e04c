"""Rung 7: tiles loaded a vec4f at a time."""

from dataclasses import replace

from toprung.lab.ladders.webgpu.r01_naive import CHECKS
from toprung.lab.ladders.webgpu.r02_workgroup_tiles import two_tiles
from toprung.lab.ladders.webgpu.r06_register_tiles import RUNG as BEFORE
from toprung.tile import Tile

RUNG = replace(
    BEFORE,
    idea="wide loads, register tiles",
    expects="a quarter of A's loads and of the reads of As",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4), Tile(BM=64, BN=64, BK=16, TM=8, TN=8, VA=4, VB=4)),
        "cpu": (Tile(BM=64, BN=64, BK=16, TM=8, TN=8, VA=4, VB=4),),
    },
    local_bytes=two_tiles,
    space={"BM": (32, 64, 128), "BN": (32, 64, 128), "BK": (8, 16, 32), "TM": (4, 8), "TN": (4, 8)},
    switches=(*BEFORE.switches, CHECKS),
)
