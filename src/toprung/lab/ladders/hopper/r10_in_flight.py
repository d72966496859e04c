"""Rung 10: operands are split on their way to the matrix units."""

from toprung.backends.base import DYNAMIC_SHARED
from toprung.kernels.hopper_fp32x.config import in_flight as config_of
from toprung.lab.bounds import in_flight
from toprung.lab.bounds.levels import TensorWork
from toprung.lab.ladders.hopper.r01_wgmma import needs
from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile

FIXED = config_of().defines(False, False, 4, 4)
"""The library's macros for operands that lie as they come; those that are the tile's come from the tile."""


def ring(tile: Tile) -> int:
    """Bytes of shared memory that the library's kernel takes with this tile."""
    return config_of().of(tile.given()).shared_bytes


def in_terms(tile: Tile) -> TensorWork:
    """Three products whose operands come as fp32 and are split on their way."""
    clocks = in_flight.cycles(in_flight.SCHEMES[0], tile.BM, tile.BN)
    each = {what: n / in_flight.DEPTH for what, n in clocks.items()}
    shared, instructions = each["shared memory"] * in_flight.BANKS, each["instructions"] * in_flight.LANES
    return TensorWork(3 * tile.BM * tile.BN, shared, 4 * (tile.BM + tile.BN), instructions)


RUNG = Rung(
    idea="split in flight, one launch",
    expects="1.2 times rung 7 at 1024 and 1.1 times at 2048, where the splitting pass is a third and a fifth of the call; 0.9 "
    "times at 4096 and 0.85 times at 8192: every block splits again what others have split, and instructions and shared "
    "memory take longer than the matrix units",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=32, TM=2, TN=32, STAGES=4),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp32x",
    method="gemm_inflight",
    tensor=in_terms,
    kernel="inflight",
    defines={name: n for name, n in FIXED.items() if name not in ("BN", "STAGES", DYNAMIC_SHARED)},
    more_items=256,
    rules=(
        Rule("BK = 32", "a row and a column have a scale for each 32 of K", lambda t, d: t.BK == 32),
        Rule("TM = 2", "a warpgroup owns 64 rows: a thread two of them", lambda t, d: t.TM == 2),
        Rule("TN = BN / 4", "four threads own a row", lambda t, d: (t.TN or 0) * 4 == t.BN),
        Rule("BM = 128", "each consumer warpgroup owns 64 rows", lambda t, d: t.BM == 128),
        Rule("BN is 32, 64 or 128", "one, two or four threads split a column", lambda t, d: t.BN in (32, 64, 128)),
        Rule("STAGES ≥ 3", "one is on its way while one is split and one multiplied", lambda t, d: (t.STAGES or 0) >= 3),
    ),
    space={"BN": (64, 128), "STAGES": (3, 4)},
)  # fmt: skip
