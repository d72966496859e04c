"""Rung 7: a vector of A times a vector of B for each work-item."""

from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.ladders.turing.r02_local_tiles import tiles_bytes
from toprung.lab.rung import Options, Rung
from toprung.tile import EQUAL_SHARES, Rule, Tile, divides

WHOLE_VECTORS = (
    divides("BK", "VA", "a load of A takes VA elements of one row of the tile"),
    divides("PADA", "VA", "every row of As must begin where a vector may"),
    *EQUAL_SHARES,
)


def shared_accesses(t: Tile, options: Options, tid: int) -> SharedAccesses:
    """Vectors of As[k][m] and Bs[k][n], as in all rungs from here on; warps have WM×WN from rung 9 on."""
    va, vb, bk, pitch = t.VA or 1, t.VB or 1, t.BK or 1, t.BM + (t.PADA or 0)
    high, wide = ((t.WM or t.BM) // (t.TM or 1), (t.WN or t.BN) // (t.TN or 1))  # lanes of a warp, or work-items of a group
    (warp, lane), across = divmod(tid, high * wide), t.BN // (t.WN or t.BN)
    tm, tn = warp // across * (t.WM or 0) + lane // wide * va, warp % across * (t.WN or 0) + lane % wide * vb
    a = [(k * pitch + tm + i * high * va, va) for k in range(bk) for i in range((t.TM or 1) // va)]
    b = [(k * t.BN + tn + j * wide * vb, vb) for k in range(bk) for j in range((t.TN or 1) // vb)]
    own = [tid + i * t.work_items for i in range(max(t.LA, t.LB))]
    packed = [((at * va % bk + e) * pitch + at * va // bk, 1) for at in own[: t.LA] for e in range(va)]
    return a + b, packed + [(at * vb, vb) for at in own[: t.LB]]


RUNG = Rung(
    idea="4×4 micro-kernel",
    expects="1/TM + 1/TN local reads a multiplication, half of one at 4×4: two to three times on a GPU",
    tiles={
        "gpu": (Tile(BM=64, BN=64, BK=16, TM=4, TN=4, VA=4, VB=4, PADA=4),),
        "cpu": (Tile(BM=32, BN=32, BK=16, TM=4, TN=16, VA=4, VB=16, PADA=4),),
    },
    local_bytes=tiles_bytes,
    shared_accesses=shared_accesses,
    published=Tile(BM=64, BN=64, BK=16, TM=4, TN=4, VA=4, VB=4, PADA=0),
    rules=(
        Rule("TM = VA", "a work-item owns one vector of rows", lambda t, d: t.TM == t.VA),
        Rule("TN = VB", "and one of columns", lambda t, d: t.TN == t.VB),
        *WHOLE_VECTORS,
    ),
    space={
        "BM": (16, 32, 64), "BN": (32, 64), "BK": (8, 16, 32), "TM": (1, 2, 4), "TN": (4, 8, 16), "VA": (1, 2, 4),
        "VB": (4, 8, 16), "PADA": (0, 4),
    },
    whole="ABC",
)  # fmt: skip
