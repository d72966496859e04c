"""Stream-K's list of work: a last, incomplete wave of blocks is cut along K so that all work-groups end together.

A GPU runs a number of work-groups at one time (slots). Blocks of C beyond the last whole wave leave some slots idle; here they are
laid end to end along K and cut evenly over all slots. The piece with which a block begins is written to C, each other one to a
place of its own, and a second launch adds those in their order: no work-group waits for another, and the same product gives the
same bits. The idea of cutting is stream-K's (Osama et al., 2023); there work-groups wait for each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Session
from toprung.kernels.build import kept
from toprung.tile import Tile

BAND = 8
"""Rows of blocks in a band: work-groups go down them before the next column, so that those which run at one time lie together."""


@dataclass(frozen=True)
class Piece:
    """Iterations ``start`` to ``end`` of the loop over K for one block of C, the block by its number."""

    block: int
    start: int
    end: int

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return self.end - self.start


def corner(block: int, rows: int, columns: int, band: int = BAND) -> tuple[int, int]:
    """Return row and column of a block, counted in blocks, where they are numbered in bands."""
    top, within = block // (band * columns) * band, block % (band * columns)
    high = min(band, rows - top)
    return top + within % high, within // high


def to_cut(blocks: int, iterations: int, slots: int, least: int) -> int:
    """Return how many blocks, the last ones, are cut: what the last whole wave leaves, if enough is saved.

    Where that would be less than half a wave, the wave before is cut, too: shares are longer then, and blocks have few parts.
    """
    last = blocks % slots
    if last == 0 or iterations * (slots - last) < least * slots:
        return 0
    return last + slots if blocks > slots > 2 * last else last


def cut(first: int, blocks: int, iterations: int, shares: int) -> Iterator[Piece]:
    """Yield blocks from ``first`` on end to end, cut into shares that differ by one iteration at most; a block's end cuts, too."""
    ends = {blocks * iterations * share // shares for share in range(shares + 1)} | {
        block * iterations for block in range(blocks + 1)
    }
    for start, end in itertools.pairwise(sorted(ends)):
        yield Piece(first + start // iterations, start % iterations, start % iterations + end - start)


def pieces(blocks: int, iterations: int, slots: int, least: int) -> tuple[list[Piece], list[Piece]]:
    """Return whole blocks in the order of their numbers; and the pieces of those that are cut, in the order of blocks and K."""
    last = to_cut(blocks, iterations, slots, least)
    shares = min(slots, last * iterations // least)
    if shares <= last < slots:
        last = 0
    whole = [Piece(block, 0, iterations) for block in range(blocks - last)]
    return whole, list(cut(blocks - last, last, iterations, shares)) if last else []


@dataclass(frozen=True)
class Work:
    """The lists that the two kernels read.

    Attributes
    ----------
    groups : for each work-group of the first m, n, from, to (along K) and its part, -1 for the piece that begins a block
    added : for each block that has parts m, n, its first part and how many there are
    parts : how many there are in all
    """

    groups: NDArray[np.int32]
    added: NDArray[np.int32]
    parts: int


def work(M: int, N: int, K: int, tile: Tile, slots: int, least: int, band: int = BAND) -> Work:
    """Return the lists for a product whose sizes need not be whole tiles.

    Long pieces come first: a slot that is done early finds a short one.
    """
    deep = tile.BK or 1
    rows, columns = -(-M // tile.BM), -(-N // tile.BN)
    whole, parted = pieces(rows * columns, -(-K // deep), slots, least)

    def at(block: int) -> tuple[int, int]:
        m, n = corner(block, rows, columns, band)
        return m * tile.BM, n * tile.BN

    numbers = {piece: number for number, piece in enumerate(p for p in parted if p.start)}  # a block's follow each other
    parted.sort(key=lambda piece: -piece.iterations)
    groups = [(*at(p.block), p.start * deep, min(p.end * deep, K), numbers.get(p, -1)) for p in (*whole, *parted)]
    added = []
    for block, of in itertools.groupby(numbers, key=lambda piece: piece.block):
        mine = [numbers[piece] for piece in of]
        added.append((*at(block), mine[0], len(mine)))
    return Work(np.array(groups, np.int32), np.array(added, np.int32), len(numbers))


def uploaded(table: NDArray[np.int32], session: Session) -> Buffer:
    """Return a table in device memory, which stays as long as the session: a graph that was captured may read it at any time."""

    def made() -> Buffer:
        buffer = session.allocate(table.nbytes)
        session.upload(buffer, table)
        return buffer

    return kept(session, table.tobytes(), made)
