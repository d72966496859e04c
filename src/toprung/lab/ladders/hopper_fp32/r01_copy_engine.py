"""Rung 1: a warpgroup that only fetches, through the copy engine, and eight warps of 64×64."""

from toprung.device import Device
from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.rung import Options, Rung
from toprung.tile import Rule, Tile

WHOLE = {"ARCH_SPECIFIC": 1, "GROUP": 8, "CUT": 0}
"""Macros; CUT: whether tiles may be cut along K, which the launch is told."""


def needs(device: Device) -> str:
    """CUDA, and the one architecture that has these instructions."""
    if device.backend != "cuda":
        return "the copy engine is used from CUDA C++; OpenCL C has no equivalent"
    if device.arch != "sm_90":
        return f"the exchange of registers is SM 9.0's (Hopper's), and this is {device.arch}"
    return ""


def ring(tile: Tile) -> int:
    """Bytes of STAGES tiles of A and B in fp32, of the alignment they need, and of three barriers a stage."""
    return (tile.STAGES or 1) * (4 * (tile.BM + tile.BN) * (tile.BK or 0) + 24) + 128


def shared_accesses(t: Tile, options: Options, tid: int, apart: bool = False) -> SharedAccesses:
    """Reads by a lane of a warp's 64×64, four floats each; TMA writes what arrives. ``apart``: rung 6's lanes."""
    lane, deep = tid % 32, range(t.BK or 1)
    down, right = (lane % 4 + lane // 16 * 4, (lane ^ lane // 4) % 4) if apart else (lane // 4, lane % 4)
    a = [(k * t.BM + i * 32 + down * 4, 4) for k in deep for i in range(2)]
    return a + [(k * t.BN + j * 16 + right * 4, 4) for k in deep for j in range(4)], ()


RULES = (
    Rule("BM · BN = 8 · 64 · 64", "eight warps of 64×64 have the registers of a multiprocessor", lambda t, d: t.BM * t.BN == 32768),
    Rule("BM % 64 = 0", "a block is whole warps high", lambda t, d: t.BM % 64 == 0),
    Rule("BN % 64 = 0", "and wide", lambda t, d: t.BN % 64 == 0),
    Rule("TM = 8, TN = 16", "a lane owns 4 rows of each 32 and 4 columns of each 16", lambda t, d: (t.TM, t.TN) == (8, 16)),
    Rule("BK % 2 = 0", "fragments alternate between two sets of registers", lambda t, d: (t.BK or 1) % 2 == 0),
    Rule("STAGES ≥ 2", "one stage is filled while another is multiplied", lambda t, d: (t.STAGES or 0) >= 2),
)

RUNG = Rung(
    idea="copy engine, eight warps of 64×64",
    expects="no thread that multiplies moves data, and two fragments serve 128 multiply-adds: 0.93 times cuBLAS at 8192 with A "
    "stored transposed; less where the last wave is short or operands have to be laid out",
    tiles={"gpu": (Tile(BM=128, BN=256, BK=16, TM=8, TN=16, STAGES=5),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    method="gemm_hopper_fp32",
    kernel="ffma",
    defines=WHOLE,
    more_items=128,
    shared_accesses=shared_accesses,
    rules=RULES,
    space={"BM": (64, 128, 256, 512), "BN": (64, 128, 256, 512), "STAGES": (3, 4, 5)},
)
