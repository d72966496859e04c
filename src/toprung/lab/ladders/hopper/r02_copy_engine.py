"""Rung 2: the copy engine fills a ring of tiles while the units work."""

from dataclasses import replace

from toprung.lab.ladders.hopper import r01_wgmma
from toprung.tile import Rule, Tile

DEEP = Rule("STAGES ≥ 2", "one stage is filled while another is multiplied", lambda t, d: (t.STAGES or 0) >= 2)

RUNG = replace(
    r01_wgmma.RUNG,
    idea="copy engine and barriers",
    expects="copies hide behind products and no thread moves data: 1.5 to 2.5 times rung 1",
    tiles={"gpu": (Tile(BM=128, BN=128, BK=64, TM=4, TN=32, STAGES=3),)},
    maps=True,
    rules=(*r01_wgmma.RUNG.rules, DEEP),
    space={"STAGES": (2, 3, 4, 6)},
)
