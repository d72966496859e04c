"""Rung 7: tiles loaded VA and VB floats at a time."""

from dataclasses import replace

from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.ladders.kepler.r02_local_tiles import two_tiles
from toprung.lab.ladders.kepler.r06_register_tiles import RUNG as BEFORE
from toprung.lab.rung import Options
from toprung.tile import Tile


def shared_accesses(t: Tile, options: Options, tid: int) -> SharedAccesses:
    """vectors of As[k][m] and Bs[k][n], as in the rungs after this one, too."""
    va, vb, deep, (tm, tn) = t.VA or 1, t.VB or 1, range(t.BK or 1), divmod(tid, t.DN)
    a = [(k * t.BM + tm * va + i * t.DM * va, va) for k in deep for i in range((t.TM or 1) // va)]
    if options.get("SHUFFLE"):  # one element of A, the others through registers
        mine = tn % (t.TM or 1)
        a = [(k * t.BM + tm * va + mine // va * t.DM * va + mine % va, 1) for k in deep]
    b = [(k * t.BN + tn * vb + j * t.DN * vb, vb) for k in deep for j in range((t.TN or 1) // vb)]
    own = [tid + i * t.work_items for i in range(max(t.LA, t.LB))]
    return a + b, [(at * va, va) for at in own[: t.LA]] + [(at * vb, vb) for at in own[: t.LB]]


RUNG = replace(
    BEFORE,
    idea="wide loads, register tiles",
    expects="a quarter of the load and store instructions at width 4",
    tiles={
        "gpu": (Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4),),
        "cpu": (Tile(BM=32, BN=32, BK=64, TM=8, TN=32, VA=8, VB=16), Tile(BM=32, BN=256, BK=32, TM=8, TN=16, VA=8, VB=16)),
    },
    local_bytes=two_tiles,
    shared_accesses=shared_accesses,
    published=Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4),
    space={
        "BM": (32, 64, 128), "BN": (32, 64, 128), "BK": (8, 16, 32, 64), "TM": (4, 8), "TN": (4, 8, 16, 32), "VA": (1, 4, 8),
        "VB": (4, 16),
    },
)  # fmt: skip
