"""Rung 10: the next tile and the next vectors are fetched into registers ahead of their use."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r07_micro_4x4 import shared_accesses
from toprung.lab.ladders.turing.r09_warp_tiles import PUBLISHED, RULES, SPACE, TILES
from toprung.lab.rung import Rung

RUNG = Rung(
    idea="register prefetch",
    expects="the wait for global memory disappears behind a tile's multiplications: a tenth, less where other work-groups filled "
    "it already",
    tiles=TILES,
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=PUBLISHED,
    rules=RULES,
    space=SPACE,
    whole="ABC",
)
