"""Rung 1: one matrix instruction at a time, fp16 in and fp32 out."""

from toprung.device import Device
from toprung.lab.bounds.levels import tensor_work
from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile

ARCH = {"ARCH_SPECIFIC": 1}
"""Macro that asks for the instructions that only sm_90a has."""


def needs(device: Device) -> str:
    """CUDA, and the one architecture that has these instructions."""
    if device.backend != "cuda":
        return "warpgroup matrix instructions are written in CUDA C++; OpenCL C has no equivalent"
    if device.arch != "sm_90":
        return f"warpgroup matrix instructions are SM 9.0's (Hopper's) alone, and this is {device.arch}"
    return ""


def ring(tile: Tile) -> int:
    """Bytes of STAGES tiles of A and B in fp16, of the alignment they need, and of two barriers a stage."""
    stages = tile.STAGES or 1
    return 1024 + stages * (2 * (tile.BM + tile.BN) * (tile.BK or 0) + 16)


def shaped(high: int, most: int) -> tuple[Rule, ...]:
    """Rules of tiles for warpgroups that each own ``high`` instructions of 64 rows, at most ``most`` columns wide."""
    return (
        Rule("BK = 64", "a row of a tile is 128 bytes: the widest swizzle", lambda t, d: t.BK == 64),
        Rule(f"TM = {2 * high}", f"a warpgroup owns {64 * high} rows: a thread two of each 64", lambda t, d: t.TM == 2 * high),
        Rule("TN = BN / 4", "four threads own a row", lambda t, d: (t.TN or 0) * 4 == t.BN),
        Rule(f"BM % {64 * high} = 0", "a block is whole warpgroups high", lambda t, d: t.BM % (64 * high) == 0),
        Rule(
            f"BN is 64, 96, 128, 192 or 256, at most {most}",
            "widths that the header has, with sums that fit the registers",
            lambda t, d: t.BN in (64, 96, 128, 192, 256) and t.BN <= most,
        ),
    )


ONE = Rule("BM = 128", "one warpgroup owns all rows", lambda t, d: t.BM == 128)

RUNG = Rung(
    idea="warpgroup matrix instructions",
    expects="the units wait for every copy, and every copy for the units: a fifth to a third of what cuBLAS makes of fp16, which "
    "is already several times the fp32 peak",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=64, TM=4, TN=32),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp16",
    method="gemm_fp16",
    tensor=tensor_work,
    defines=ARCH,
    rules=(*shaped(2, 128), ONE),
    space={"BN": (128,)},
)
