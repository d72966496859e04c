"""Split-K: sums cut into slices of K so that more work-groups have work; a second pass adds their results."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, TypeVar

from numpy.typing import NDArray

from toprung.tile import Tile

N = TypeVar("N", int, NDArray[Any])

LEAST_ITERATIONS = 4
"""Iterations of the loop over K that a slice has at least."""

FEW_PARTS = 4
"""Parts of a sum up to which one work-item of the second pass adds them all; more are shared."""


def slice_depth(depth: int, piece: N, slices: N) -> N:
    """Return the length of a slice of K, whole pieces of the loop; like ``whole_slices`` for columns of numbers, too."""
    pieces = -(-depth // piece)
    return -(-pieces // slices) * piece  # type: ignore[no-any-return]


def whole_slices(depth: int, piece: N, slices: N) -> N:
    """Return how many slices there are really, none of them empty."""
    return -(-depth // slice_depth(depth, piece, slices))


@functools.lru_cache(1 << 14)
def with_slices(tile: Tile, slices: int) -> Tile:
    """Return a tile with its number of slices; one slice is no split. Every selection asks for some hundred of the same."""
    return replace(tile, SPLIT_K=slices if slices > 1 else None)


def adapted_slices(depth: int, piece: int, slices: int, blocks: int, measured_blocks: int, exact: bool) -> int:
    """Return the number of slices, none empty, for ``blocks`` work-groups where ``measured_blocks`` had ``slices``."""
    wanted = slices if exact else round(slices * measured_blocks / max(blocks, 1))
    most = depth // piece if exact else depth // (LEAST_ITERATIONS * piece)
    return whole_slices(depth, piece, max(1, min(wanted, most))) if depth else 1
