"""Rung 3: a warpgroup that only fetches, one that only multiplies, and registers that change hands."""

from toprung.lab.bounds.levels import tensor_work
from toprung.lab.ladders.hopper.r01_wgmma import ARCH, ONE, needs, ring, shaped
from toprung.lab.ladders.hopper.r02_copy_engine import DEEP
from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile

RUNG = Rung(
    idea="producer and consumer",
    expects="no barrier of all threads in the loop: 1.05 to 1.15 times rung 2",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=64, TM=4, TN=32, STAGES=3),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp16",
    method="gemm_fp16",
    tensor=tensor_work,
    defines=ARCH,
    maps=True,
    more_items=128,
    rules=(
        *shaped(2, 128),
        ONE,
        DEEP,
        Rule(
            "two rings fit",
            "two blocks share a multiprocessor; each also costs 1 KiB",
            lambda t, d: 2 * (ring(t) + 1024) <= 228 * 1024,
        ),
    ),
    space={"STAGES": (2, 3)},
)
