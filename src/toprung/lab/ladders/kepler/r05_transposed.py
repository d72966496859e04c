"""Rung 5: A transposed beforehand, tiles of any depth."""

from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.ladders.kepler.r04_wide_types import ONE_VECTOR
from toprung.lab.rung import Options, Rung
from toprung.tile import EQUAL_SHARES, Tile


def padded_tiles(tile: Tile) -> int:
    """Bytes of As, with its padding, and Bs."""
    bk = tile.BK or 0
    return 4 * (tile.BM * (bk + (tile.PADA or 0)) + bk * tile.BN)


def shared_accesses(t: Tile, options: Options, tid: int) -> SharedAccesses:
    """As[m][k], written down its columns, and vectors of Bs[k][n]; also rung 6's."""
    vec, pitch, own = t.VEC or 1, (t.BK or 1) + (t.PADA or 0), [tid + i * t.work_items for i in range(max(t.LA, t.LB))]
    tm, tn = tid // t.DN, tid % t.DN * vec
    b = [(k * t.BN + tn + j * t.DN * vec, vec) for k in range(t.BK or 1) for j in range((t.TN or 1) // vec)]
    a = [((tm + i * t.DM) * pitch + k, 1) for i in range(t.TM or 1) for k in range(t.BK or 1)]
    return b + a, [(at % t.BM * pitch + at // t.BM, 1) for at in own[: t.LA]] + [(at, 1) for at in own[: t.LB]]


RUNG = Rung(
    idea="A transposed, rectangular tiles",
    expects="little by itself, and the loads lose their width: it frees BK, which the next rungs need",
    tiles={
        "gpu": (Tile(BM=64, BN=64, BK=16, TM=8, TN=4, VEC=4, PADA=1),),
        "cpu": (Tile(BM=32, BN=32, BK=32, TM=8, TN=16, VEC=16, PADA=1),),
    },
    local_bytes=padded_tiles,
    shared_accesses=shared_accesses,
    published=Tile(BM=32, BN=32, BK=16, TM=8, TN=1, VEC=1, PADA=2),
    rules=(ONE_VECTOR, *EQUAL_SHARES),
    space={
        "BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (8, 16, 32), "TM": (1, 2, 4, 8), "TN": (1, 4, 8, 16), "VEC": (1, 4, 8, 16),
        "PADA": (0, 1),
    },
    whole="ABC",
    transposed="A",
)  # fmt: skip
