"""The kernels for short sides on a CPU, where a work-group is one work-item: it walks along its rows and keeps all sums itself."""

from pathlib import Path

from toprung.kernels.record import LibraryKernel
from toprung.kernels.skinny_model import SMALL
from toprung.tile import Rule, Tile, divides

ALONE = (
    Rule("TM = BM", "a work-group is one work-item", lambda t, d: t.TM == t.BM),
    Rule("TN = BN", "a work-group is one work-item", lambda t, d: t.TN == t.BN),
    Rule("BN is 1, 2, 4, 8 or 16", "there are vectors of so many floats", lambda t, d: t.BN in SMALL),
)

ROWS = LibraryKernel(
    idea="vectors along the short side; rows of the large operand from front to back",
    expects="the speed of memory up to a short side of 8, half a core's multiply-adds at 16",
    tiles={"cpu": (Tile(BM=256, BN=1, BK=256, TM=256, TN=1, WM=4),)},
    local_bytes=lambda t: 4 * t.BN * (t.BM + (t.BK or 0)),
    rules=(*ALONE, divides("BM", "WM", "rows are taken WM at a time")),
    family="skinny_cpu",
    stem="rows",
    source=Path(__file__).with_name("rows.cl"),
    routine="rows",
)

DOTS = LibraryKernel(
    idea="vectors along K; rows of the large operand from front to back",
    expects="the speed of memory",
    tiles={"cpu": (Tile(BM=64, BN=1, BK=4096, TM=64, TN=1, WM=8, VA=8),)},
    local_bytes=lambda t: 4 * t.BN * (t.BM + (t.BK or 0)),
    rules=(*ALONE, divides("BM", "WM", "rows are taken WM at a time")),
    family="skinny_cpu",
    stem="dots",
    source=Path(__file__).with_name("dots.cl"),
    routine="dots",
)

COLUMNS = LibraryKernel(
    idea="a few rows of the large operand at a time, from left to right",
    expects="the speed of memory up to a short side of 8, half a core's multiply-adds at 16",
    tiles={
        "cpu": (
            Tile(BM=1024, BN=8, TM=1024, TN=8, VA=8, KU=16),
            Tile(BM=2048, BN=4, TM=2048, TN=4, VA=8, KU=16),
            Tile(BM=2048, BN=1, TM=2048, TN=1, VA=8, KU=8),
        )
    },
    local_bytes=lambda t: 4 * t.BN * (2 * t.BM + (t.KU or 0)),
    rules=ALONE,
    family="skinny_cpu",
    stem="columns",
    source=Path(__file__).with_name("columns.cl"),
    routine="columns",
)

# of a kernel's tiles the first with a BN that the small side has is taken, and its BN is that side then

RECORDS = {record.stem: record for record in (ROWS, DOTS, COLUMNS)}

MOST = {"BM": 4096, "BK": 8192, "WM": 16, "KU": 64}
"""Largest sizes that are ever built."""

SPACES = {
    "rows": {"BM": (256, 64, 128, 512), "BK": (256, 1024), "WM": (4, 8, 2), "SPLIT_K": (1, 2, 4)},
    "dots": {"BM": (64, 16, 32, 256), "WM": (8, 4, 2), "VA": (8, 16, 4), "SPLIT_K": (1, 2, 4)},
    "columns": {"BM": (1024, 256, 512, 2048), "VA": (8, 16, 4), "KU": (16, 8, 32), "SPLIT_K": (1, 2, 4)},
}
"""Spaces of a search."""
