"""The two skinny kernels: a few dot products with every row of a large matrix, or with every column, as it lies."""

from pathlib import Path

from toprung.gemm.desc import ELEMENT_BYTES
from toprung.kernels.record import SHUFFLE, LibraryKernel, Switch
from toprung.kernels.skinny_model import SMALL
from toprung.tile import POWER_OF_TWO, Rule, Tile, divides

WHOLE_SUBGROUPS = Rule(
    "DN divides the sub-group, or the sub-group DN",
    "a team lies within one sub-group or has whole ones, and sub-groups are whole",
    lambda t, d: not d.subgroup or (0 in (d.subgroup % t.DN, t.DN % d.subgroup) and t.work_items % d.subgroup == 0),
)

TYPES = tuple(ELEMENT_BYTES)
"""Types of an operand, by the numbers that the kernels have for them."""

LARGE, LITTLE = (
    Switch(f"{name}_TYPE", f"type of the {which} operand's elements: {', '.join(TYPES)}", values=tuple(range(len(TYPES))))
    for name, which in (("X", "large"), ("Y", "small"))
)
FEW = Switch("SMALL", "rows of the small operand", values=SMALL)
FOLD = Switch("FOLD", "a work-item adds its products up in chains; 0: in one", values=(0, 1))

ROOM = Switch(
    "RESIDENT",
    "work-groups that an SM must have registers for, so that no more are saved; 0: as it comes",
    values=(0, 1, 2, 4, 8, 16, 32),
)

MOST_AT_ONCE = 32
"""Floats of a row that a lane has on their way at once, at most: a chain of the kernel's."""


def sums_of_rows(tile: Tile) -> int:
    """Return the bytes of a float for each work-item, and of a sum for each 32 lanes of a team, of as many rows of Y as may be."""
    return 4 * tile.work_items + 4 * SMALL[-1] * tile.BM * max(1, tile.DN // 32)


# On a CPU, too, work-items share a sum: in one chain, a few hundred products err more than NumPy's, which adds up vectors
ROWS = LibraryKernel(
    idea="the large operand once, row by row",
    expects="the speed of memory, whatever the small side",
    tiles={
        "gpu": (Tile(BM=32, BN=128, TM=4, TN=4, VEC=4, VB=4),),
        "cpu": (Tile(BM=16, BN=64, TM=4, TN=4, VEC=4, VB=4), Tile(BM=4, BN=4, TM=4, TN=4, VEC=4, VB=4)),
    },
    local_bytes=sums_of_rows,
    rules=(
        POWER_OF_TWO,
        WHOLE_SUBGROUPS,
        Rule(f"TN ≤ {MOST_AT_ONCE}", "chains end between iterations", lambda t, d: (t.TN or 1) <= MOST_AT_ONCE),
        Rule("TM is a power of two", "lanes exchange halves of their sums", lambda t, d: (t.TM or 1) & ((t.TM or 1) - 1) == 0),
    ),
    switches=(SHUFFLE, FEW, FOLD, ROOM, LARGE, LITTLE),
    family="skinny",
    stem="rows",
    source=Path(__file__).with_name("rows.cl"),
    routine="rows",
)


def sums_and_piece(tile: Tile) -> int:
    """Return the bytes of DN sums for each of BM columns, and of a piece of Y with as many rows as there may be, padded."""
    return 4 * tile.DN * tile.BM + 4 * tile.BN * (SMALL[-1] + 4)


COLUMNS = LibraryKernel(
    idea="the large operand once, all columns side by side",
    expects="the speed of memory, whatever the small side",
    tiles={
        "gpu": (Tile(BM=128, BN=64, TM=4, TN=16, VA=4, KU=4),),
        "cpu": (Tile(BM=64, BN=64, TM=4, TN=8, VA=4, KU=4),),
    },
    local_bytes=sums_and_piece,
    rules=(
        Rule("TM = VA", "a work-item owns one vector of columns", lambda t, d: t.TM == t.VA),
        divides("TN", "KU", "and takes KU rows of X at a time"),
    ),
    switches=(FEW, FOLD, ROOM, LARGE, LITTLE),
    family="skinny",
    stem="columns",
    source=Path(__file__).with_name("columns.cl"),
    routine="columns",
)

RECORDS = {record.stem: record for record in (ROWS, COLUMNS)}

SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
SPACES = {
    ("rows", "gpu"): {
        "ITEMS": (128, 64, 256, 512),
        "TEAM": (32, 64, 128, 256),
        "TM": (4, 1, 2, 8),
        "AT_ONCE": (1, 2, 4),
        "SPLIT_K": SLICES,
    },
    ("rows", "cpu"): {"ITEMS": (64, 16, 32, 128), "TEAM": (16, 8), "TM": (4, 1, 2, 8), "AT_ONCE": (1,), "SPLIT_K": (1, 2, 4)},
    ("columns", "gpu"): {"ACROSS": (32, 16, 64), "DN": (4, 2, 8, 16), "TN": (16, 8, 32), "KU": (4, 1, 2, 8), "SPLIT_K": SLICES},
    ("columns", "cpu"): {"ACROSS": (16, 4, 8, 32), "DN": (8, 4, 2), "TN": (8, 16), "KU": (4, 1, 2, 8), "SPLIT_K": (1, 2, 4)},
}
"""Spaces of a search: ``ITEMS`` of a work-group, in teams of ``TEAM`` that share TM rows, with ``AT_ONCE`` loads of each on their
way; ``ACROSS`` work-items side by side, ``DN`` of them below each other."""
