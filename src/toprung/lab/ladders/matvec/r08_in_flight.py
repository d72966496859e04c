"""Rung 8: KU independent loads in flight."""

from dataclasses import replace

from toprung.lab.ladders.matvec.r06_subgroups import RUNG as SUBGROUPS
from toprung.lab.ladders.matvec.r07_vector_loads import RUNG as BEFORE
from toprung.tile import Rule, Tile

RUNG = replace(
    BEFORE,
    idea="loads in flight",
    expects="memory's latency is paid once for KU loads: 1.1 to 1.5 times on long rows; nothing on rows shorter than BN",
    tiles={
        "gpu": (Tile(BM=1, BN=4096, TN=16, VEC=4, KU=4),),
        "cpu": (Tile(BM=1, BN=128, TN=32, VEC=16, KU=2),),
    },
    rules=(
        *SUBGROUPS.rules,
        Rule("TN = VEC · KU", "a work-item takes KU vectors a turn", lambda t, d: t.TN == (t.VEC or 1) * (t.KU or 1)),
    ),
    space={"BN": (128, 256, 512, 1024, 4096), "TN": (4, 8, 16, 32), "VEC": (2, 4, 8, 16), "KU": (1, 2, 4, 8)},
)
