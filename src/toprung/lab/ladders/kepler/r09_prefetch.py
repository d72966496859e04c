"""Rung 9: the next tile is on its way while this one is computed with."""

from toprung.lab.ladders.kepler.r02_local_tiles import two_tiles
from toprung.lab.ladders.kepler.r05_transposed import EQUAL_SHARES
from toprung.lab.ladders.kepler.r07_wide_loads import PUBLISHED, SPACE, TILES, shared_accesses
from toprung.lab.rung import Rung
from toprung.tile import Tile


def two_buffers(tile: Tile) -> int:
    """Bytes of As and Bs, two of each."""
    return 2 * two_tiles(tile)


RUNG = Rung(
    idea="software prefetch",
    expects="one barrier a tile in place of two, and loads in flight during the arithmetic; a loss where twice the local memory "
    "halves the work-groups (it did on Kepler)",
    tiles=TILES,
    local_bytes=two_buffers,
    shared_accesses=shared_accesses,
    published=PUBLISHED,
    rules=EQUAL_SHARES,
    space=SPACE,
    whole="ABC",
    transposed="A",
)
