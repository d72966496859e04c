"""Block kernels: products in BM×BN blocks of C with tiles of A and B in local memory. Tiles, their rules, and predicted seconds.

``BLOCKS`` is the table of tiles for a GPU (``models/blocks.json``); ``benchmarks/tiles.py`` measures them, and
``benchmarks/fit_routes.py`` fits their numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toprung.device import Device
from toprung.gemm.desc import LARGEST, Desc, GemmDesc, widest
from toprung.kernels import cost_model
from toprung.kernels.base import MOST, Switches
from toprung.kernels.record import Switch
from toprung.kernels.split_k import LEAST_ITERATIONS, slice_depth, whole_slices
from toprung.tile import COMMON, EQUAL_SHARES, Rule, Tile, broken, divides, fits_local

CHAINS = {32: 8, 128: 16}
"""Longest K with the products of a chain; a longer K has chains of ``LONG_CHAIN``, and ``CPU_CHAIN``
on a CPU, whose BLAS has longer ones."""
LONG_CHAIN, CPU_CHAIN = 32, 256
ONE_CHAIN = 2048
"""K of a launch of a kernel whose sums are one chain of multiply-adds."""
CHAINED_SUMS = 64
"""Sums of a GPU's work-item up to which there are registers for a second set of them, to which chains are added."""
UNCUT = 1 << 22
"""Results of C from which on cuBLAS's sums are one chain, as in batches: ours may be there, in tiles that are faster so."""
SHALLOW, UNCUT_SHALLOW = 128, 1 << 20
"""K up to which so many results are enough for that: a vendor has nothing to cut there either."""


def shortest_chain(K: int, tile: Tile) -> int:
    """Return how many products of a sum are added up by themselves; on a CPU its sums fill all registers."""
    if (tile.VEC or 1) > 4:
        return CPU_CHAIN
    for longest, chain in CHAINS.items():
        if longest >= K:
            return chain
    return LONG_CHAIN


def has_many_sums(tile: Tile, most: int = CHAINED_SUMS) -> bool:
    """Return True if a work-item of a GPU has more than ``most`` sums; a CPU's vectors are longer."""
    return (tile.TM or 1) * (tile.TN or 1) > most and (tile.VEC or 1) <= 4


def may_be_uncut(desc: GemmDesc, tile: Tile) -> bool:
    """Return True if a tile's sums may be one chain: a vendor's are, and K is not cut."""
    least = UNCUT_SHALLOW if desc.K <= SHALLOW else UNCUT
    return (desc.batch > 1 or desc.M * desc.N >= least) and (tile.SPLIT_K or 1) == 1


def chain_of(desc: GemmDesc, tile: Tile) -> int | None:
    """Return a tile's ``CHAIN`` in a product: 0, one chain, where that is faster and may be; None where it must not be built."""
    if has_many_sums(tile, CHAINED_SUMS - 1) and may_be_uncut(desc, tile):
        return 0
    return None if has_many_sums(tile) else shortest_chain(desc.K, tile)


def longest_launch(options: Switches) -> int:
    """Return the largest K of a launch, in one slice."""
    return ONE_CHAIN if dict(options).get(CHAIN.name) == 0 else LARGEST


def tiles_bytes(tile: Tile) -> int:
    """Return the bytes of As and Bs with their paddings, in all buffers."""
    return 4 * (tile.STAGES or 1) * (tile.BK or 0) * (tile.BM + (tile.PADA or 0) + tile.BN + (tile.PADB or 0))


def along_m(tile: Tile) -> int:
    """Return the floats of a work-item's pieces along M (VM)."""
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

CHAIN = Switch(
    "CHAIN", "products of a sum that are added up by themselves; 0: all of them", values=(LONG_CHAIN, 16, 8, CPU_CHAIN, 0)
)

LAYOUT_SWITCHES = (
    Switch("TRANS_A", "A is stored K×M"),
    Switch("TRANS_B", "B is stored N×K"),
    Switch("VC", "floats of an access to C", values=(1, 2, 4)),
    Switch("INDEX32", "offsets within a matrix have 32 bits", values=(1, 0)),
    CHAIN,
)

RESIDENT = Switch(
    "RESIDENT",
    "work-groups an SM must have registers for; 0: as it comes",
    values=(0, 1, 2, 3, 4, 5, 6, 8),
    searched=True,
)
GROUP_M = Switch("GROUP_M", "blocks of rows that are covered together", values=(8, 1, 2, 4, 16, 32), searched=True)


def square(block: int, deep: int, piece: int, warp: tuple[int, int], **more: int) -> Tile:
    """Return a tile as high as wide, with the widest accesses."""
    return Tile(
        BM=block, BN=block, BK=deep, WM=warp[0], WN=warp[1], TM=piece, TN=piece, VEC=4, VA=4, VB=4, STAGES=1, PADA=4, PADB=4, **more
    )


def tile_grid(desc: Desc, tile: Tile) -> tuple[int, int]:
    """Return the blocks of C down and across."""
    return -(-desc.M // tile.BM), -(-desc.N // tile.BN)


def block_count(desc: Desc, tile: Tile) -> int:
    """Return the blocks of all matrices of the batch."""
    return math.prod(tile_grid(desc, tile)) * desc.batch


def fitted(desc: GemmDesc, tile: Tile) -> Tile:
    """Return a tile with accesses to A and B as wide as operands and tile allow."""
    a, b, _ = desc.widths
    return replace(tile, VA=min(a, tile.TM or 1), VB=min(b, tile.TN or 1))


def too_wide(desc: GemmDesc, tile: Tile) -> str:
    """Return why a tile's accesses do not suit a product's operands; empty if they do."""
    a, b, _ = desc.widths
    return "its accesses are wider than the operands allow" if (tile.VA or 1) > a or (tile.VB or 1) > b else ""


def width_of_c(desc: GemmDesc, tile: Tile, slices: int) -> int:
    """Return the floats of an access to C, or to the slices of it: no more than a work-item's piece."""
    return min(desc.widths[2] if slices == 1 else widest(desc.N), tile.VEC or 1)


def layout_options(desc: GemmDesc, tile: Tile, options: dict[str, int], width: int) -> tuple[tuple[str, int], ...]:
    """Return switches as a product's layout asks for: transposes, accesses to C of at most ``width`` floats, 64-bit offsets."""
    options["TRANS_A"], options["TRANS_B"] = int(desc.trans_a), int(desc.trans_b)
    options["VC"] = min(options.get("VC", 4), width)
    options[CHAIN.name] = 0 if chain_of(desc, tile) == 0 == options.get(CHAIN.name) else shortest_chain(desc.K, tile)
    if not desc.index32:
        options["INDEX32"] = 0
    return tuple(sorted(options.items()))


# what the heuristic weighs on a GPU


@dataclass(frozen=True)
class Block:
    """A tile that the heuristic weighs on a GPU.

    Attributes
    ----------
    tile : with the widest accesses; narrower ones replace them where the operands need it
    efficiency : share of the lanes' multiply-adds that it reaches where nothing else limits and operands are aligned
    resident : work-groups an SM holds; registers decide
    asked : how many the compiler is told to leave registers for; 0: as it comes
    ahead, order : switches of the kernel
    chained : False for a tile whose sums are one chain, for products of which a vendor's are
    wide : True for a tile that has registers for accesses of four floats alone
    """

    tile: Tile
    efficiency: float
    resident: int = 1
    asked: int = 0
    ahead: int = 1
    order: int = 0
    chained: bool = True
    wide: bool = False


def _tile(bm: int, bn: int, bk: int, warp: tuple[int, int], piece: tuple[int, int], stages: int) -> Tile:
    return Tile(
        BM=bm, BN=bn, BK=bk, WM=warp[0], WN=warp[1], TM=piece[0], TN=piece[1], VEC=widest(piece[1]), VA=4, VB=4, STAGES=stages,
        PADA=4, PADB=4,
    )  # fmt: skip


BLOCKS, VENDOR_BLOCKS = (
    tuple(Block(**{**one, "tile": _tile(*one["tile"])}) for one in cost_model.fitted(name)["tiles"])
    for name in ("blocks", "cublas")
)
"""Tiles that are weighed; and those that stand for a vendor's, whose sums are one chain, as ours were."""

WAVES = (1, 2, 4)
"""Split-K factors to try, as work-groups per SM."""


def block_like(tile: Tile) -> Block | None:
    """Return the block of ``BLOCKS`` that a tile was made of; None if there is none."""
    global _table
    if _table[0] is not BLOCKS:
        _table = BLOCKS, {_shape(one.tile): one for one in BLOCKS}
    return _table[1].get(_shape(tile))


def _shape(tile: Tile) -> tuple[int | None, ...]:
    """Return the fields of a tile that operands and split-K leave alone; without ``replace``, as selection calls this often."""
    return tile.BM, tile.BN, tile.BK, tile.WM, tile.WN, tile.TM, tile.TN, tile.VEC, tile.STAGES, tile.KU


_table: tuple[tuple[Block, ...], dict[tuple[int | None, ...], Block]] = (), {}


class Table(NamedTuple):
    """Blocks, and their numbers in columns: all of them are weighed at once.

    Attributes
    ----------
    source : the table that they were made of
    blocks : the blocks
    columns : of their tiles
    efficiency, resident, chained : of the blocks
    roomy : True where lanes of a tile have the local memory to exchange results in pieces of VEC floats
    """

    source: tuple[Block, ...]
    blocks: tuple[Block, ...]
    columns: cost_model.Columns
    efficiency: NDArray[Any]
    resident: NDArray[Any]
    chained: NDArray[Any]
    roomy: NDArray[Any]


_rules = (*COMMON, fits_local(tiles_bytes), *RULES)
_narrow: dict[tuple[Device, int, int, bool], Table] = {}


def is_roomy(tile: Tile) -> bool:
    """Return True if lanes have the local memory to exchange results before they write them, in pieces of VEC floats."""
    vec, deep = tile.VEC or 1, (tile.STAGES or 1) * (tile.BK or 1)
    return vec <= 4 and deep * max(tile.BM, tile.BN) >= tile.work_items * vec


def narrowed(device: Device, a: int, b: int, vendor: bool = False) -> Table:
    """Return ``BLOCKS`` (``VENDOR_BLOCKS``) with the widest accesses that are legal, none wider than ``a`` and ``b`` floats.

    Tiles that are for wide accesses alone are left out where those are narrower.
    """
    table = VENDOR_BLOCKS if vendor else BLOCKS
    known = _narrow.get((device, a, b, vendor))
    if known is None or known.source is not table:
        narrower, found = [(va, vb) for va in (4, 2, 1) if va <= a for vb in (4, 2, 1) if vb <= b], []
        for one in table:
            if one.wide and min(a, b) < 4:
                continue
            fit = (replace(one.tile, VA=va, VB=vb) for va, vb in narrower)
            found += [replace(one, tile=tile) for tile in fit if not broken(_rules, tile, device)][:1]
        columns = cost_model.Columns(*np.array([cost_model.Columns.of(one.tile) for one in found]).T)
        others = ([getattr(one, name) for one in found] for name in ("efficiency", "resident", "chained"))
        roomy = np.array([is_roomy(one.tile) for one in found])
        efficiency, resident, chained = map(np.array, others)
        known = _narrow[device, a, b, vendor] = Table(table, tuple(found), columns, efficiency, resident, chained, roomy)
    return known


def split_k_factors(desc: GemmDesc, tile: Tile, compute_units: int) -> list[int]:
    """Return the numbers of K slices worth weighing: one, and what gives each SM ``WAVES`` work-groups, or the most there are."""
    piece, blocks = tile.BK or 1, block_count(desc, tile)
    most = max(1, desc.K // (LEAST_ITERATIONS * piece))
    wanted = {1, *(round(compute_units * waves / blocks) for waves in WAVES)}
    return sorted({whole_slices(desc.K, piece, min(n, most)) for n in wanted if n >= 1})


def block_seconds(
    device: Device, desc: GemmDesc, block: Block, tile: Tile, slices: int, regrouped: bool = False, clustered: bool = False
) -> float:  # fmt: skip
    """Return the predicted seconds of a product by blocks on a GPU.

    Parameters
    ----------
    tile : the block's, with accesses as wide as they will be
    regrouped : lanes exchange results, so that neighbours are written side by side
    clustered : slices are the blocks of a cluster, and add up in the product's launch
    """
    launches = 1 if clustered else min(slices, 2)
    vc = width_of_c(desc, tile, launches)
    cycles = cost_model.block_cycles(
        desc, tile, block.efficiency, block.resident, slices, vc, desc.widths[2], device.compute_units, device.lanes or 128,
        cost_model.BLOCK, regrouped, clustered,
    )  # fmt: skip
    return float(cost_model.seconds(cycles, launches, cost_model.hz(device)))


def weighed(
    device: Device, desc: GemmDesc, table: Table, at: NDArray[Any], slices: NDArray[Any], clustered: bool = False,
    aligned: bool = False,
) -> NDArray[Any]:  # fmt: skip
    """Return ``block_seconds`` of blocks of a table, by their places there and their slices of K.

    ``aligned``: as if operands and C were aligned, by the numbers of a vendor's kernels.
    """
    t = cost_model.Columns(*(column[at] for column in table.columns))
    launches = np.ones_like(slices) if clustered else np.minimum(slices, 2)
    c, p = desc.widths[2], cost_model.VENDOR_BLOCK if aligned else cost_model.BLOCK
    wide, vc = (4, np.minimum(4, t.VEC)) if aligned else (c, np.minimum(np.where(launches == 1, c, widest(desc.N)), t.VEC))
    cycles = cost_model.block_cycles(
        desc, t, table.efficiency[at], table.resident[at], slices, vc, wide, device.compute_units, device.lanes or 128, p,
        False if aligned else (vc < t.VEC) & table.roomy[at], clustered,
    )  # fmt: skip
    found: NDArray[Any] = cost_model.seconds(cycles, launches, cost_model.hz(device))
    return found


def least(table: Table, at: NDArray[Any], slices: NDArray[Any], seconds: NDArray[Any]) -> list[tuple[float, Block, int]]:
    """Return seconds, block and slices of the ``MOST`` least, the first of equals first."""
    order = np.argsort(seconds, kind="stable")[:MOST]
    found = zip(seconds[order].tolist(), at[order].tolist(), slices[order].tolist(), strict=True)
    return [(time, table.blocks[i], n) for time, i, n in found]


def split_k_columns(desc: GemmDesc, table: Table, compute_units: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the places of a table's blocks, each as often as it has ``split_k_factors``, and these."""
    t = table.columns
    count = -(-desc.M // t.BM) * -(-desc.N // t.BN) * desc.batch
    waves = np.array([compute_units * w for w in WAVES])
    wanted = np.hstack([np.ones((len(count), 1)), np.rint(waves / count[:, None])]).clip(1, None)
    wanted = np.minimum(wanted.astype(np.int64), np.maximum(1, desc.K // (LEAST_ITERATIONS * t.BK))[:, None])
    whole = np.sort(whole_slices(desc.K, t.BK[:, None], wanted), axis=1)
    first = np.hstack([np.ones((len(count), 1), bool), whole[:, 1:] != whole[:, :-1]])
    return np.nonzero(first)[0], whole[first]


def aligned_blocks(device: Device, desc: GemmDesc, side: int, split_side: int = 0) -> list[tuple[Block, int, float]]:
    """Return block, K slices and predicted seconds of what a vendor's library may have, aligned: sides of ``side`` and more.

    ``split_side``: least longer side of those whose sums are split.
    """
    table = narrowed(device, 4, 4, vendor=True)
    at, slices = split_k_columns(desc, table, device.compute_units)
    t = table.columns
    kept = (np.minimum(t.BM, t.BN)[at] >= side) & ((slices == 1) | (np.maximum(t.BM, t.BN)[at] >= split_side))
    at, slices = at[kept], slices[kept]
    found = weighed(device, desc, table, at, slices, aligned=True)
    return [(table.blocks[i], n, time) for i, n, time in zip(at.tolist(), slices.tolist(), found.tolist(), strict=True)]


# on a CPU


def cpu_work(device: Device, desc: GemmDesc, tile: Tile, slices: int) -> float:
    """Return the multiply-adds of the busiest core, edges included; three times as many for narrow vectors, which idle lanes."""
    waves = -(-block_count(desc, tile) * slices // device.compute_units)
    narrow = 1.0 if tile.TN and tile.TN >= 16 else 3.0
    return narrow * waves * tile.BM * tile.BN * slice_depth(desc.K, tile.BK or 1, slices)


CPU_RATE = 5e9
"""Multiply-adds a second that ``cpu_work`` counts as: a round number, which orders and promises nothing."""
