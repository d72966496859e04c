"""The tunable product: every layout, every shape, tiles as data."""

from toprung.blas.kernel import LibraryKernel
from toprung.ladders.turing.r05_micro_1x4 import EQUAL_SHARES
from toprung.rung import Switch
from toprung.tile import Rule, Tile, divides


def tiles_bytes(tile: Tile) -> int:
    """Bytes of As and Bs with their paddings, in all buffers."""
    return 4 * (tile.STAGES or 1) * (tile.BK or 0) * (tile.BM + (tile.PADA or 0) + tile.BN + (tile.PADB or 0))


def along_m(tile: Tile) -> int:
    """Floats of a work-item's pieces along M (VM)."""
    return next(w for w in (4, 2, 1) if (tile.TM or 1) % w == 0)


RULES = (
    divides("BM", "WM", "a block is whole warps high"),
    divides("BN", "WN", "and wide"),
    divides("WM", "TM", "a warp is whole work-items high"),
    divides("WN", "TN", "and wide"),
    divides("BK", "VA", "a load of an untransposed A takes VA elements along K"),
    divides("BK", "VB", "a load of a transposed B takes VB elements along K"),
    Rule(
        "rows of As begin aligned",
        "they are read VM floats at a time and written VA",
        lambda t, d: (t.BM + (t.PADA or 0)) % max(along_m(t), t.VA or 1) == 0,
    ),
    Rule(
        "rows of Bs begin aligned",
        "they are read VEC floats at a time and written VB",
        lambda t, d: (t.BN + (t.PADB or 0)) % max(t.VEC or 1, t.VB or 1) == 0,
    ),
    *EQUAL_SHARES,
    Rule(
        "WM · WN = TM · TN · warp on a GPU",
        "a warp's tile is what its work-items own",
        lambda t, d: d.kind != "gpu" or not d.subgroup or (t.WM or 1) * (t.WN or 1) == (t.TM or 1) * (t.TN or 1) * d.subgroup,
    ),
    Rule(
        "TM · TN ≤ 128 on a GPU",
        "a work-item's results need as many registers, of which it has at most 255",
        lambda t, d: d.kind != "gpu" or (t.TM or 1) * (t.TN or 1) <= 128,
    ),
)

SWITCHES = (
    Switch("TRANS_A", "A is stored K×M"),
    Switch("TRANS_B", "B is stored N×K"),
    Switch("VC", "floats of an access to C", values=(1, 2, 4)),
    Switch("INDEX32", "offsets within a matrix have 32 bits", values=(1, 0)),
    Switch("AHEAD", "vectors are read from local memory one k ahead", values=(1, 0), searched=True),
    Switch("ORDER", "multiplications as the ox ploughs", searched=True),
    Switch(
        "RESIDENT",
        "work-groups a multiprocessor must have registers for; 0: as it comes",
        values=(0, 1, 2, 3, 4, 5, 6, 8),
        searched=True,
    ),
    Switch("GROUP_M", "blocks of rows that are covered together", values=(8, 1, 2, 4, 16, 32), searched=True),
)

SPACE = {
    "BM": (16, 32, 64, 128, 256), "BN": (16, 32, 64, 128, 256), "BK": (4, 8, 16, 32), "WM": (8, 16, 32, 64, 128),
    "WN": (8, 16, 32, 64, 128), "TM": (2, 4, 8, 16), "TN": (2, 4, 8, 16), "VEC": (4, 2), "STAGES": (1, 2), "PADA": (0, 4),
    "PADB": (0, 4), "SPLIT_K": (1, 2, 3, 4, 6, 8, 12, 16),
}  # fmt: skip
"""What a search may try, with the switches that are its to choose. VA, VB and VC follow from the call: as wide as may be."""


def square(block: int, deep: int, piece: int, warp: tuple[int, int], **more: int) -> Tile:
    """A block as high as wide."""
    return Tile(
        BM=block, BN=block, BK=deep, WM=warp[0], WN=warp[1], TM=piece, TN=piece, VEC=4, VA=4, VB=4, STAGES=1, PADA=4, PADB=4, **more
    )


KERNEL = LibraryKernel(
    idea="one tunable text for every layout and shape",
    expects="the last rungs' speed where the block fits the shape, and in all four transposes",
    tiles={
        "gpu": (square(128, 8, 8, (32, 64)), square(64, 8, 4, (16, 32)), square(32, 8, 4, (16, 32))),
        "cpu": (
            Tile(BM=32, BN=64, BK=16, WM=16, WN=64, TM=8, TN=32, VEC=16, VA=4, VB=4, STAGES=1, PADA=0, PADB=0),
            square(16, 8, 4, (16, 16)),
        ),
    },
    local_bytes=tiles_bytes,
    rules=RULES,
    space=SPACE,
    switches=SWITCHES,
    routine="gemm",
)
