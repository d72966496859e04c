"""Rung 2: tiles of A and B packed into local memory."""

from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.rung import Options, Rung
from toprung.tile import Rule, Tile


def tiles_bytes(tile: Tile) -> int:
    """Bytes of As, with its padding, and Bs."""
    return 4 * (tile.BK or 0) * (tile.BM + (tile.PADA or 0) + tile.BN)


def shared_accesses(t: Tile, options: Options, tid: int) -> SharedAccesses:
    """As[m][k] and Bs[n][k], both with k innermost."""
    (tm, tn), bk = divmod(tid, t.BN), t.BK or 1
    return [(row * bk + k, 1) for row in (tm, tn) for k in range(bk)], [(tid, 1), (tn * bk + tm, 1)]


RUNG = Rung(
    idea="tiles in local memory",
    expects="BK times less global traffic; but neighbouring work-items read Bs BK floats apart, all out of one bank, and the "
    "caches of today's GPUs serve rung 1 well: a loss there",
    tiles=dict.fromkeys(("gpu", "cpu"), (Tile(BM=32, BN=32, BK=32), Tile(BM=16, BN=16, BK=16))),
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=32),
    rules=(Rule("BM = BN = BK", "each work-item loads one element of each tile", lambda t, d: t.BM == t.BN == t.BK),),
    space={"BM": (8, 16, 32), "BN": (8, 16, 32), "BK": (8, 16, 32)},
    whole="ABC",
)
