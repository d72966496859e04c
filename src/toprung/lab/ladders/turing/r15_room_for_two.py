"""Rung 15: few enough registers for two work-groups a multiprocessor."""

from dataclasses import replace

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r12_boustrophedon import RUNG as BOUSTROPHEDON

RUNG = replace(
    BOUSTROPHEDON,
    idea="room for two",
    expects="two work-groups a multiprocessor as rung 10, the fastest so far, has, and the order of rung 12 on top: 1.01 to 1.03 "
    "times rung 10; through OpenCL, where rung 10 needs more than 128 registers, up to 1.2 times if this fits",
    local_bytes=tiles_bytes,
    switches=(),
)
