"""Rung 4: vec4f in place of single floats."""

from dataclasses import replace

from toprung.lab.ladders.webgpu.r01_naive import CHECKS
from toprung.lab.ladders.webgpu.r02_workgroup_tiles import RUNG as TILED
from toprung.tile import Rule, Tile

ONE_VECTOR = Rule("TN = VEC", "an invocation owns one vector of columns", lambda t, d: t.TN == t.VEC)

RUNG = replace(
    TILED,
    idea="vec4f in buffers and tiles",
    expects="a quarter of the loads, and 1/4 + 1/TM reads of a vector for four multiplications in place of 1 + 1/TM for one",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=32, BN=32, BK=32, TM=4, TN=4, VEC=4),)),
    rules=(*TILED.rules, ONE_VECTOR),
    space={"BM": (16, 32), "BN": (16, 32), "BK": (16, 32), "TM": (1, 2, 4, 8)},
    switches=(CHECKS,),
)
