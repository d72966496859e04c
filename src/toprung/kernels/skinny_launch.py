"""The launch that kernels for short sides share: sizes and strides from the large operand's point of view."""

from __future__ import annotations

from toprung.backends.base import Session
from toprung.backends.plan import A, B
from toprung.errors import LaunchError
from toprung.gemm.desc import Desc
from toprung.kernels.base import Launches, TileConfig
from toprung.kernels.launch import MOST_GROUPS, direct, longs, summed, uints
from toprung.kernels.record import LibraryKernel
from toprung.kernels.split_k import slice_depth


def skinny_launches(
    session: Session, desc: Desc, record: LibraryKernel, config: TileConfig, piece: int, meet: bool = False
) -> Launches:  # fmt: skip
    """Return one launch; where the large operand is B, the operands change places.

    Parameters
    ----------
    piece : elements along K of which slices are multiples
    meet : the kernel adds its slices up itself; else they go to scratch memory, and a second launch does
    """
    s, c, tile, slices = desc.skinny, desc.result, config.tile, config.slices
    blocks = -(-s.length // tile.BM)
    if blocks * c.batch > MOST_GROUPS:
        raise LaunchError(f"{desc}: {blocks * c.batch:,} work-groups where a launch has {MOST_GROUPS:,} at most")
    if slices > 1 and not meet:
        down, on, stride, stride_slice = c.cols, 1, c.rows * c.cols, c.elements
    else:
        down, on, stride, stride_slice = c.down, c.on, c.stride, 0
    if not s.swapped:  # few columns: the small operand's rows are the result's columns
        down, on = on, down
    fixed = [
        *uints(s.length, s.few, s.depth, blocks, slice_depth(s.depth, piece, slices)),
        *longs(s.ld, s.stride_large, s.down, s.on, s.stride_small, down, on, stride, stride_slice),
    ]

    operands = (B, A) if s.swapped else (A, B)
    main = direct(session, record, config, (blocks * c.batch, slices), (tile.work_items,), fixed, operands)
    return Launches(session, summed(session, desc, 1 if meet else slices, main))
