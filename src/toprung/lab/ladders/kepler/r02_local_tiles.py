"""Rung 2: tiles of A and B staged in local memory."""

from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.rung import Options, Rung
from toprung.tile import Rule, Tile

SQUARE = Rule("BM = BN = BK", "each work-item stages elements of both tiles at its own place", lambda t, d: t.BM == t.BN == t.BK)


def two_tiles(tile: Tile) -> int:
    """Bytes of As and Bs."""
    return 4 * (tile.BK or 0) * (tile.BM + tile.BN)


def shared_accesses(t: Tile, options: Options, tid: int) -> SharedAccesses:
    """VEC columns of B and one row of A at a time, rows DM apart, as up to rung 4."""
    vec, rows, deep = t.VEC or 1, t.TM or 1, range(t.BK or 1)
    tm, tn = tid // t.DN, tid % t.DN * vec
    loads = [(k * t.BN + tn, vec) for k in deep] + [((tm + i * t.DM) * (t.BK or 1) + k, 1) for i in range(rows) for k in deep]
    return loads, 2 * [((tm + i * t.DM) * t.BN + tn, vec) for i in range(rows)]


RUNG = Rung(
    idea="tiles in local memory",
    expects="BK times less global traffic; on a CPU local memory is ordinary memory, and the barriers only cost",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=32, BN=32, BK=32), Tile(BM=16, BN=16, BK=16))),
    local_bytes=two_tiles,
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=32),
    rules=(SQUARE,),
    space={"BM": (8, 16, 32), "BN": (8, 16, 32), "BK": (8, 16, 32)},
    whole="ABC",
)
