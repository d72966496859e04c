"""Rung 11: two buffers in local memory, one barrier a tile."""

from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.ladders.turing.r07_micro_4x4 import shared_accesses
from toprung.lab.ladders.turing.r09_warp_tiles import PUBLISHED, RULES, SPACE, TILES
from toprung.lab.rung import Rung, Switch
from toprung.tile import Tile

INDEX32 = Switch(
    "INDEX32",
    "1: offsets of 32 bits, which leaves registers for two work-groups a multiprocessor; 0: of 64, for 2³¹ elements and more",
    values=(1, 0),
)


def two_buffers(tile: Tile) -> int:
    """Bytes of As and Bs, two of each."""
    return 2 * tiles_bytes(tile)


RUNG = Rung(
    idea="double buffer",
    expects="one barrier a tile in place of two: a few per cent",
    tiles=TILES,
    local_bytes=two_buffers,
    shared_accesses=shared_accesses,
    published=PUBLISHED,
    rules=RULES,
    space=SPACE,
    whole="ABC",
    switches=(INDEX32,),
)
