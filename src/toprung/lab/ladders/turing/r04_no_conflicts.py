"""Rung 4: local memory without bank conflicts."""

from dataclasses import replace

from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.ladders.turing.r02_local_tiles import RUNG as TILED
from toprung.lab.rung import Options
from toprung.tile import Tile


def shared_accesses(t: Tile, options: Options, tid: int) -> SharedAccesses:
    """As[k][m] and Bs[k][n]; in rungs 5 and 6 a work-item owns TN columns, in vectors of VEC."""
    vec, columns, pitch, deep = t.VEC or 1, t.TN or 1, t.BM + (t.PADA or 0), range(t.BK or 1)
    tm, tn = tid // t.DN, tid % t.DN * columns
    loads = [(k * pitch + tm, 1) for k in deep] + [(k * t.BN + tn + j, vec) for k in deep for j in range(0, columns, vec)]
    own = [(tid + i * t.work_items) * vec for i in range(max(t.LA, t.LB) // vec)]
    a = [((at % (t.BK or 1) + e) * pitch + at // (t.BK or 1), 1) for at in own[: t.LA // vec] for e in range(vec)]
    return loads, a + [(at, vec) for at in own[: t.LB // vec]]


RUNG = replace(
    TILED,
    idea="no bank conflicts",
    expects="reads of Bs 32 times as fast, so the arithmetic decides: two to five times; without the padding of As half of that",
    tiles={kind: tuple(replace(t, PADA=1) for t in tiles) for kind, tiles in TILED.tiles.items()},
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=32, PADA=0),
    space={**TILED.space, "PADA": (0, 1)},
)
