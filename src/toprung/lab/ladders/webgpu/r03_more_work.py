"""Rung 3: a strip of rows for each invocation."""

from dataclasses import replace

from toprung.lab.ladders.webgpu.r02_workgroup_tiles import RUNG as BEFORE
from toprung.lab.rung import Switch
from toprung.tile import Tile

LOOPS = Switch("UNROLL", "0: marked loops stay loops, each with the compiler's own counter beside its own", values=(1, 0))

RUNG = replace(
    BEFORE,
    idea="a strip of C per invocation",
    expects="1 + 1/TM reads of workgroup memory a multiplication in place of 2: up to 1.8 times where those limit, and much slower "
    "than rung 2 where acc lies in memory, as with UNROLL=0",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=32, BN=32, BK=32, TM=8),)),
    space={"BM": (16, 32), "BN": (16, 32), "BK": (16, 32), "TM": (2, 4, 8, 16)},
    switches=(LOOPS,),
)
