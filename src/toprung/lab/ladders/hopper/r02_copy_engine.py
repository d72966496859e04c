"""Rung 2: the copy engine fills a ring of tiles while the units work."""

from toprung.lab.bounds.levels import tensor_work
from toprung.lab.ladders.hopper.r01_wgmma import ARCH, ONE, needs, ring, shaped
from toprung.lab.rung import Rung
from toprung.tile import Rule, Tile

DEEP = Rule("STAGES ≥ 2", "one stage is filled while another is multiplied", lambda t, d: (t.STAGES or 0) >= 2)

RUNG = Rung(
    idea="copy engine and barriers",
    expects="copies hide behind products and no thread moves data: 1.5 to 2.5 times rung 1",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=64, TM=4, TN=32, STAGES=3),)},
    local_bytes=ring,
    dynamic=True,
    needs=needs,
    precision="fp16",
    method="gemm_fp16",
    tensor=tensor_work,
    defines=ARCH,
    maps=True,
    rules=(*shaped(2, 128), ONE, DEEP),
    space={"STAGES": (2, 3, 4, 6)},
)
