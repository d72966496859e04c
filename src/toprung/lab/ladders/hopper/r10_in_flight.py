"""Rung 10: operands are split on their way to the matrix units."""

from toprung.lab.ladders.hopper.r01_wgmma import ARCH, needs
from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile


def ring(tile: Tile) -> int:
    """Bytes of STAGES tiles of A and B in fp32, of B's scales and three barriers a stage, and of what is computed again."""
    return 1024 + (tile.STAGES or 0) * (128 * (tile.BM + tile.BN) + 4 * tile.BN + 24) + 2 * 4 * 8 * (64 + 32)


RUNG = Rung(
    idea="split in flight, one launch",
    expects="1.2 times rung 7 at 1024 and 1.1 times at 2048, where the splitting pass is a third and a fifth of the call; 0.9 "
    "times at 4096 and 0.85 times at 8192: every block splits again what others have split, and instructions and shared "
    "memory take longer than the matrix units",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=32, TM=2, TN=32, STAGES=6),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp32x",
    method="gemm_inflight",
    kernel="inflight",
    defines={
        **ARCH, "CONSUMERS": 2, "GROUP": 8, "AHEAD": 3, "SLICES": 1, "RESIDENT": 1, "PRODUCER_REGISTERS": 88,
        "CONSUMER_REGISTERS": 208, "TRANS_A": 0, "TRANS_B": 0, "ALIGN_A": 4, "ALIGN_B": 4,
    },
    more_items=128,
    rules=(
        Rule("BK = 32", "a row and a column have a scale for each 32 of K", lambda t, d: t.BK == 32),
        Rule("TM = 2", "a warpgroup owns 64 rows: a thread two of them", lambda t, d: t.TM == 2),
        Rule("TN = BN / 4", "four threads own a row", lambda t, d: (t.TN or 0) * 4 == t.BN),
        Rule("BM = 128", "each consumer warpgroup owns 64 rows", lambda t, d: t.BM == 128),
        Rule("BN is 32, 64 or 128", "one, two or four threads split a column", lambda t, d: t.BN in (32, 64, 128)),
        Rule("STAGES ≥ 5", "three are on their way while one is split and one multiplied", lambda t, d: (t.STAGES or 0) >= 5),
    ),
    space={"BN": (64, 128), "STAGES": (5, 6)},
)  # fmt: skip
