"""Rung 6: three fp16 products that make one as accurate as fp32."""

from functools import partial

from toprung.lab.bounds.levels import tensor_work
from toprung.lab.ladders.hopper.r01_wgmma import ARCH, needs
from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile

TWO_CONSUMERS = {**ARCH, "CONSUMERS": 2, "GROUP": 8, "PRODUCER_REGISTERS": 24, "CONSUMER_REGISTERS": 240}

THREE = partial(tensor_work, products=3, terms=2)


def ring(tile: Tile) -> int:
    """Bytes of STAGES tiles of both terms of A and B, of the alignment they need, and of two barriers a stage."""
    return 1024 + (tile.STAGES or 0) * (128 * (tile.BM + tile.BN) + 16)


def shaped(high: int) -> tuple[Rule, ...]:
    """Rules of tiles that are ``high`` warpgroups high."""
    return (
        Rule("BK = 32", "32 hi and 32 lo are a row of 128 bytes: the widest swizzle", lambda t, d: t.BK == 32),
        Rule("TM = 2", "a warpgroup owns 64 rows: a thread two of them", lambda t, d: t.TM == 2),
        Rule("TN = BN / 4", "four threads own a row", lambda t, d: (t.TN or 0) * 4 == t.BN),
        Rule(f"BM = {64 * high}", "each consumer warpgroup owns 64 rows", lambda t, d: t.BM == 64 * high),
        Rule("BN is 32, 64 or 128", "three sets of sums must fit the registers", lambda t, d: t.BN in (32, 64, 128)),
        Rule("STAGES ≥ 2", "one stage is filled while another is multiplied", lambda t, d: (t.STAGES or 0) >= 2),
    )


RUNG = Rung(
    idea="three products, promoted",
    expects="a third of rung 5's rate less the second set of sums, which halves the tile: 0.3 of rung 5, and still three to four "
    "times cuBLAS in fp32",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=32, TM=2, TN=32, STAGES=6),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp32x",
    method="gemm_fp32x",
    tensor=THREE,
    kernel="fp32x",
    defines=TWO_CONSUMERS,
    more_items=128,
    rules=shaped(2),
    space={"BN": (64, 128), "STAGES": (4, 5, 6)},
)  # fmt: skip
