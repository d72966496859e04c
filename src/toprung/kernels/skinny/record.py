"""The two skinny kernels: a few dot products with every row of a large matrix, or with every column, as it lies."""

import functools
from dataclasses import replace
from pathlib import Path

from toprung.device import Device
from toprung.gemm.desc import ELEMENT_BYTES, Skinny
from toprung.kernels.record import SHUFFLE, LibraryKernel, Switch
from toprung.kernels.skinny_model import SMALL
from toprung.tile import POWER_OF_TWO, Rule, Tile, divides

WHOLE_SUBGROUPS = Rule(
    "DN divides the sub-group, or the sub-group DN",
    "a team lies within one sub-group or has whole ones, and sub-groups are whole",
    lambda t, d: not d.subgroup or (0 in (d.subgroup % t.DN, t.DN % d.subgroup) and t.work_items % d.subgroup == 0),
)

FEW = Switch("SMALL", "rows of the small operand", values=SMALL)
FOLD = Switch("FOLD", "products that a work-item adds up in a chain; 0: all", values=(0, 16, 32))

ROOM = Switch(
    "RESIDENT",
    "work-groups that an SM must have registers for, so that no more are saved; 0: as it comes",
    values=(0, 1, 2, 4, 8, 16, 32),
)


def chain(device: Device) -> int:
    """Return the products per chain if a work-item has several; a CPU's are short, as NumPy's are."""
    return 32 if device.kind == "gpu" else 16


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
        Rule("TN is at most a chain", "chains end between iterations", lambda t, d: (t.TN or 1) <= chain(d)),
        Rule("TM is a power of two", "lanes exchange halves of their sums", lambda t, d: (t.TM or 1) & ((t.TM or 1) - 1) == 0),
    ),
    switches=(SHUFFLE, FEW, FOLD, ROOM),
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
    switches=(FEW, FOLD, ROOM),
    source=Path(__file__).with_name("columns.cl"),
    routine="columns",
)


def cluster_bytes(record: LibraryKernel, tile: Tile, slices: int) -> int:
    """Return the bytes of local memory of a block in a cluster: the kernel's own, and the others' sums."""
    return record.local_bytes(tile) + 4 * (SMALL[-1] * tile.BM + slices)


RECORDS = {record.source.stem: record for record in (ROWS, COLUMNS)}

TYPES = tuple(ELEMENT_BYTES)
"""Types of an operand's elements, by the numbers that the kernels have for them."""


def typed(record: LibraryKernel, s: Skinny) -> LibraryKernel:
    """Return the record of a kernel that reads operands of a product's types as they are stored."""
    return _typed(record, TYPES.index(s.type_large), TYPES.index(s.type_small))


@functools.cache
def _typed(record: LibraryKernel, large: int, small: int) -> LibraryKernel:
    types = {"X_TYPE": large, "Y_TYPE": small}
    return replace(record, defines={**record.defines, **types}) if large or small else record


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
