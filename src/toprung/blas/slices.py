"""Slices of K: sums that are cut so that more work-groups have something to do; another pass adds their results."""

from __future__ import annotations

import math
from dataclasses import replace

from toprung.tile import Tile

LEAST_TURNS = 4
"""Turns of the loop that a slice has at least."""
FEW_PARTS = 4
"""Parts of a sum up to which one work-item of the second pass adds them all; more are shared."""


def sliced(depth: int, piece: int, slices: int) -> int:
    """The length of a slice of K: whole pieces."""
    pieces = math.ceil(depth / piece)
    return math.ceil(pieces / slices) * piece


def whole_slices(depth: int, piece: int, slices: int) -> int:
    """How many slices there are really, none of them empty."""
    return -(-depth // sliced(depth, piece, slices))


def cut(tile: Tile, slices: int) -> Tile:
    """A tile as choices have it, with its slices."""
    return replace(tile, SPLIT_K=slices if slices > 1 else None)
