"""Split-K: sums cut into slices of K so that more work-groups have work; a second pass adds their results."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from toprung import forks
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


def are_deep(depth: int, piece: int, slices: int) -> bool:
    """Return True if K has ``LEAST_ITERATIONS`` iterations for each of ``slices`` slices, none empty."""
    return depth >= slices * LEAST_ITERATIONS * piece and whole_slices(depth, piece, slices) == slices


@functools.lru_cache(1 << 14)
def with_slices(tile: Tile, slices: int) -> Tile:
    """Return a tile with its number of slices; one slice is no split. Every selection asks for some hundred of the same."""
    return replace(tile, SPLIT_K=slices if slices > 1 else None)


@dataclass(frozen=True, eq=False)
class Rows:
    """Candidates weighed at once, in columns: blocks or teams, each with several numbers of K slices.

    Attributes
    ----------
    of : the block or team of each row
    piece : elements of K in an iteration
    share : work-groups to reach with slices that a second launch adds up, in ascending order; 0 for no slices
    cluster : slices of K that the blocks of a cluster add up; 1 for the other rows
    """

    of: tuple[Any, ...]
    piece: NDArray[Any]
    share: NDArray[Any]
    cluster: NDArray[Any]

    @forks.cached_property
    def kinds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Indices of the rows without clusters, and of those with clusters."""
        return np.flatnonzero(self.cluster == 1), np.flatnonzero(self.cluster > 1)

    def slices(self, K: int, count: NDArray[Any], per_cluster: float, most: float = math.inf) -> NDArray[Any]:
        """Return the slices of each row, none empty; 0 if it repeats the row before or is not worth weighing.

        ``count``: work-groups of a slice. Clusters are left out beyond ``per_cluster`` work-groups, all slices together.
        """
        pieces = K / self.piece
        limit, pieces = np.minimum(np.floor(pieces / LEAST_ITERATIONS), most), np.ceil(pieces)
        wanted = np.maximum(np.minimum(np.rint(self.share / count), limit), self.cluster)
        found: NDArray[Any] = np.ceil(pieces / np.ceil(pieces / wanted))
        left_out = (self.cluster > 1) & ((found != self.cluster) | (found > limit) | (found * count > per_cluster))
        left_out[1:] |= (self.share[1:] > 0) & (found[1:] == found[:-1])
        found[left_out] = 0
        return found

    def least(
        self, slices: NDArray[Any], seconds: NDArray[Any], most: int, clustered: bool = False
    ) -> list[tuple[float, Any, int]]:  # fmt: skip
        """Return (seconds, block or team, slices) of the ``most`` fastest rows; ties keep their order.

        ``clustered``: True for rows with clusters, False for those without.
        """
        rows = self.kinds[clustered]
        order = rows.take(seconds.take(rows).argsort(kind="stable")[:most])
        found = zip(seconds.take(order).tolist(), order.tolist(), slices.take(order).tolist(), strict=True)
        return [(time, self.of[i], int(n)) for time, i, n in found if n]


def adapted_slices(depth: int, piece: int, slices: int, blocks: int, measured_blocks: int, exact: bool) -> int:
    """Return the number of slices, none empty, for ``blocks`` work-groups where ``measured_blocks`` had ``slices``."""
    wanted = slices if exact else round(slices * measured_blocks / max(blocks, 1))
    most = depth // piece if exact else depth // (LEAST_ITERATIONS * piece)
    return whole_slices(depth, piece, max(1, min(wanted, most))) if depth else 1
