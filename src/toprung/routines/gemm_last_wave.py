"""C = α·A·B + β·C by work-groups of which each has a piece of a block: the blocks of the last wave are cut along K.

A GPU runs so many work-groups at one time (slots). Blocks of C beyond the last whole wave leave some slots idle; here they are
laid end to end along K and cut evenly over all slots. The piece with which a block begins is written to C, each other one to
a place of its own, and a second launch adds those in their order: no work-group waits for another, and the same call gives the
same bits. The idea of cutting is stream-K's (Osama et al., 2023); there work-groups wait for each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Session
from toprung.build import Compiled, shared_kernel
from toprung.routines import gemm
from toprung.routines.base import Step
from toprung.routines.gemm import Call, Gemm, round_up
from toprung.tile import Tile

BAND = 8
"""Rows of blocks in a band: work-groups go down them before the next column, so that those which run at one time lie together."""
RESIDENT = {"gpu": 2, "cpu": 1}
"""Work-groups that a compute unit runs at one time: a GPU's by the kernel's ``room_for``."""
LEAST = {"gpu": 8, "cpu": 2}
"""Turns of the loop that a slot must save, and a share have, for a cut: about what adding parts and one more launch take."""


@dataclass(frozen=True)
class Piece:
    """Turns ``start`` to ``end`` of the loop over K for one block of C, the block by its number."""

    block: int
    start: int
    end: int

    @property
    def turns(self) -> int:
        """How many there are."""
        return self.end - self.start


def corner(block: int, rows: int, columns: int, band: int = BAND) -> tuple[int, int]:
    """Row and column of a block, counted in blocks, where they are numbered in bands."""
    top, within = block // (band * columns) * band, block % (band * columns)
    high = min(band, rows - top)
    return top + within % high, within // high


def to_cut(blocks: int, turns: int, slots: int, least: int) -> int:
    """How many blocks, the last ones, are cut: what the last whole wave leaves, if enough is saved.

    Where that would be less than half a wave, the wave before is cut, too: shares are longer then, and blocks have few parts.
    """
    last = blocks % slots
    if last == 0 or turns * (slots - last) < least * slots:
        return 0
    return last + slots if blocks > slots > 2 * last else last


def cut(first: int, blocks: int, turns: int, shares: int) -> Iterator[Piece]:
    """Blocks ``first``, ``first + 1``, … end to end, cut into shares that differ by one turn at most; a block's end cuts, too."""
    ends = {blocks * turns * share // shares for share in range(shares + 1)} | {block * turns for block in range(blocks + 1)}
    for start, end in itertools.pairwise(sorted(ends)):
        yield Piece(first + start // turns, start % turns, start % turns + end - start)


def pieces(blocks: int, turns: int, slots: int, least: int) -> tuple[list[Piece], list[Piece]]:
    """Whole blocks in the order of their numbers; and the pieces of those that are cut, in the order of blocks and K."""
    last = to_cut(blocks, turns, slots, least)
    shares = min(slots, last * turns // least)
    if shares <= last < slots:
        last = 0
    whole = [Piece(block, 0, turns) for block in range(blocks - last)]
    return whole, list(cut(blocks - last, last, turns, shares)) if last else []


@dataclass(frozen=True)
class Work:
    """What the two kernels read.

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
    """The lists for a product whose sizes need not be whole tiles.

    Long pieces come first: a slot that is done early finds a short one.
    """
    deep = tile.BK or 1
    rows, columns = -(-M // tile.BM), -(-N // tile.BN)
    whole, parted = pieces(rows * columns, -(-K // deep), slots, least)

    def at(block: int) -> tuple[int, int]:
        m, n = corner(block, rows, columns, band)
        return m * tile.BM, n * tile.BN

    numbers = {piece: number for number, piece in enumerate(p for p in parted if p.start)}  # a block's follow each other
    parted.sort(key=lambda piece: -piece.turns)
    groups = [(*at(p.block), p.start * deep, min(p.end * deep, K), numbers.get(p, -1)) for p in (*whole, *parted)]
    added = []
    for block, of in itertools.groupby(numbers, key=lambda piece: piece.block):
        mine = [numbers[piece] for piece in of]
        added.append((*at(block), mine[0], len(mine)))
    return Work(np.array(groups, np.int32), np.array(added, np.int32), len(numbers))


def steps(compiled: Compiled, problem: Gemm, buffers: Mapping[str, Buffer], session: Session) -> list[Step]:
    """The launches: operands laid out as for any rung, the product, and what adds the parts."""
    return gemm.steps(compiled, problem, buffers, session, in_pieces)


def in_pieces(call: Call, session: Session) -> list[Step]:
    """One work-group a piece; where something is cut, a second launch."""
    compiled, tile, device = call.compiled, call.compiled.tile, session.device
    kind = "gpu" if device.kind == "gpu" else "cpu"
    todo = work(call.M, call.N, call.K, tile, RESIDENT[kind] * device.compute_units, LEAST[kind])
    parts = session.allocate(4 * tile.BM * tile.BN * todo.parts)
    args = (*call.args, uploaded(todo.groups, session), parts)
    product = session.bind(compiled.kernel, (len(todo.groups), 1), (tile.DN, tile.DM), args, compiled.options)
    found = [Step(compiled.rung.name, product, helper=False)]
    if todo.parts:
        each = tile.work_items * (tile.VB or 1)
        add = session.bind(
            shared_kernel("add_parts", tile, session),
            (round_up(tile.BM * tile.BN, each) // each, len(todo.added)),
            (tile.work_items, 1),
            (uploaded(todo.added, session), parts, call.c.buffer, np.int32(call.c.ld)),
        )
        found.append(Step("add_parts", add, helper=False))
    return found


def uploaded(table: NDArray[np.int32], session: Session) -> Buffer:
    """A table in device memory."""
    buffer = session.allocate(table.nbytes)
    session.upload(buffer, table)
    return buffer
