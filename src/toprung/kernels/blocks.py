"""Block kernels: products in BM×BN blocks of C with tiles of A and B in local memory. Tiles, their rules, and predicted seconds.

``BLOCKS`` is the table of tiles for a GPU (``models/blocks.json``); ``benchmarks/tiles.py`` measures them, and
``benchmarks/fit_routes.py`` fits their numbers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.device import Device
from toprung.gemm.desc import LARGEST, Desc, GemmDesc, widest
from toprung.kernels import cost_model
from toprung.kernels.base import Switches
from toprung.kernels.cluster import SIZES, no_clusters
from toprung.kernels.cost_model import Columns, block_count
from toprung.kernels.launch import chain_lengths
from toprung.kernels.record import Switch
from toprung.kernels.split_k import Rows, slice_depth
from toprung.tile import COMMON, EQUAL_SHARES, Rule, Tile, broken, divides, fits_local

LONG_CHAIN = 32
CHAINS, CPU_CHAINS = {32: 8, 128: 16, LARGEST: LONG_CHAIN}, {64: 16, 512: 64, LARGEST: 256}
"""Products per chain by the largest K that has them, on a GPU and on a CPU (compare OpenBLAS)."""
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
    chains = CPU_CHAINS if (tile.VEC or 1) > 4 else CHAINS
    return chains[next(filter(K.__le__, chains))]


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

CHAIN = Switch("CHAIN", "products of a sum that are added up by themselves; 0: all of them", values=(LONG_CHAIN, 16, 8, 64, 256, 0))

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


def product_options(desc: GemmDesc, tile: Tile) -> dict[str, int]:
    """Return the switches that follow from a product and a tile."""
    chain = chain_of(desc, tile)
    return {
        "TRANS_A": int(desc.trans_a), "TRANS_B": int(desc.trans_b), "VC": width_of_c(desc, tile, tile.SPLIT_K or 1),
        "INDEX32": int(desc.index32), "CHAIN": shortest_chain(desc.K, tile) if chain is None else chain,
    }  # fmt: skip


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
"""Tiles that are weighed, and substitutes for a vendor's tiles, which add each sum up in one chain."""

WAVES, PER_UNIT = (1, 2, 4), 6
"""Split-K factors to try, as work-groups per SM; most blocks per SM for which clusters are weighed.

The blocks of all slices count. An SM holds about six blocks of any tile."""


def block_like(tile: Tile) -> Block | None:
    """Return the block of ``BLOCKS`` that a tile was made of; None if there is none."""
    return _by_shape().get(_shape(tile))


@functools.cache
def _by_shape() -> dict[tuple[int | None, ...], Block]:
    return {_shape(one.tile): one for one in BLOCKS}


def _shape(tile: Tile) -> tuple[int | None, ...]:
    """Return the fields of a tile that operands and split-K leave alone; without ``replace``, as selection calls this often."""
    return tile.BM, tile.BN, tile.BK, tile.WM, tile.WN, tile.TM, tile.TN, tile.VEC, tile.STAGES, tile.KU


@dataclass(frozen=True, eq=False)
class Table(Rows):
    """Blocks that are weighed at once, with their numbers in columns.

    Attributes
    ----------
    blocks : the blocks, each once
    columns : numbers of the tiles
    resident, efficiency, chained, roomy : numbers of the blocks; ``roomy``: see ``is_roomy``
    room : blocks that run at once on the device
    places : the same with 0, 1, … blocks per SM; infinite from ``resident`` on
    uncut : True for blocks that add each sum up in one chain, and take all of K
    """

    blocks: tuple[Block, ...]
    columns: Columns
    resident: NDArray[Any]
    efficiency: NDArray[Any]
    chained: NDArray[Any]
    roomy: NDArray[Any]
    room: NDArray[Any]
    places: NDArray[Any]
    uncut: NDArray[Any]


_rules = (*COMMON, fits_local(tiles_bytes), *RULES)


def is_roomy(tile: Tile) -> bool:
    """Return True if lanes have the local memory to exchange results before they write them, in pieces of VEC floats."""
    vec, deep = tile.VEC or 1, (tile.STAGES or 1) * (tile.BK or 1)
    return vec <= 4 and deep * max(tile.BM, tile.BN) >= tile.work_items * vec


def cluster_bytes(tile: Tile, slices: int) -> int:
    """Return the bytes of shared memory of a block in a cluster: its tiles, and a slot per slice for sums."""
    rows = -(-(tile.TM or 1) // slices)
    return tiles_bytes(tile) + 4 * rows * slices * (tile.TN or 1) * tile.work_items


@functools.lru_cache(64)
def narrowed(device: Device, a: int, b: int, vendor: bool = False) -> Table:
    """Return ``BLOCKS`` or ``VENDOR_BLOCKS`` with the widest legal accesses up to ``a`` and ``b`` floats.

    Each has a row for all of K, for each of ``WAVES``, and for each of ``cluster.SIZES`` that its rows and memory allow.
    Tiles for wide accesses only are left out where accesses must be narrower.
    """
    narrower, found, units = [(va, vb) for va in (4, 2, 1) if va <= a for vb in (4, 2, 1) if vb <= b], [], device.compute_units
    for one in VENDOR_BLOCKS if vendor else BLOCKS:
        if one.wide and min(a, b) < 4:
            continue
        fit = (replace(one.tile, VA=va, VB=vb) for va, vb in narrower)
        found += [replace(one, tile=tile) for tile in fit if not broken(_rules, tile, device)][:1]
    rows, most = [], 0 if vendor or no_clusters(device) else device.dynamic_local_bytes
    for one in found:
        fits = (n for n in SIZES if one.chained and n <= (one.tile.TM or 1) and cluster_bytes(one.tile, n) <= most)
        rows += [(one, wave * units, 1) for wave in (0, *WAVES)] + [(one, 0, n) for n in fits]
    numbers = [(n, c, o.resident, o.efficiency, o.chained, is_roomy(o.tile), *Columns.of(o.tile)) for o, n, c in rows]
    share, cluster, resident, efficiency, chained, roomy, *columns = np.array(numbers, float).T
    counts, t = np.arange(resident.max() + 1), Columns(*columns)
    places = np.where(counts < resident[:, None], cost_model.places(counts, cluster[:, None], units), math.inf)
    return Table(
        tuple([one for one, *_ in rows]), t.BK, share, cluster, tuple(found), t, resident, efficiency, chained > 0, roomy > 0,
        cost_model.places(resident, cluster, units), places, (chained == 0) & (share == 0),
    )  # fmt: skip


def split_k_factors(desc: GemmDesc, tile: Tile, compute_units: int) -> list[int]:
    """Return the numbers of K slices worth weighing: one, and what gives each SM ``WAVES`` work-groups, or the most there are."""
    share = compute_units * np.array([0.0, *WAVES])
    rows = Rows((tile,) * len(share), np.full(len(share), tile.BK or 1.0), share, np.ones(len(share)))
    return [int(n) for n in rows.slices(desc.K, np.array(block_count(desc, tile)), 0.0).tolist() if n]


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
    second = slices > 1 and not clustered
    vc = width_of_c(desc, tile, 1 + second)
    cycles = cost_model.block_cycles(
        desc, tile, block.efficiency, block.resident, slices, vc, desc.widths[2], device.compute_units, device.lanes or 128,
        cost_model.BLOCK, regrouped, clustered,
    )  # fmt: skip
    return float(cost_model.seconds(cycles, second, cost_model.hz(device)))


@functools.lru_cache(1 << 10)
def waves(
    table: Table, trans: str, lanes: int, vendor: bool, wide: int, wide_parts: int, fetch: float
) -> tuple[cost_model.Wave, cost_model.Wave]:
    """Return the cycles of an SM by a table's rows: with as many blocks as it holds, and with 0, 1, …

    ``wide``, ``wide_parts``: floats per access to C, and to partial results. ``fetch``: cycles of reading C, per access.
    """
    t = table.columns
    count, parts = np.arange(table.resident.max() + 1).clip(1)[:, None], table.share > 0
    vc = np.minimum(np.where(parts, wide_parts, wide), t.VEC)
    regrouped, p = (vc < t.VEC) & table.roomy & (not vendor), cost_model.VENDOR_BLOCK if vendor else cost_model.BLOCK
    full, some = (
        cost_model.wave_of(trans, t, table.efficiency, vc, lanes, p, regrouped, parts, table.cluster, n, fetch)
        for n in (table.resident, count)
    )
    return full, some


def weighed(
    device: Device, desc: GemmDesc, table: Table, count: NDArray[Any], slices: NDArray[Any], K: Any, aligned: bool = False
) -> NDArray[Any]:  # fmt: skip
    """Return ``block_seconds`` of each row of a table with its number of slices; infinity for 0 slices.

    ``count``: blocks per slice. ``K``: depth of a launch, or a column of depths. ``aligned``: assume aligned operands and C, and
    use the constants of a vendor's kernels.
    """
    wide, parts = (4, 4) if aligned else (desc.widths[2], widest(desc.N))
    p = cost_model.VENDOR_BLOCK if aligned else cost_model.BLOCK
    fetch = 0.0 if desc.beta_zero else cost_model.fetch_time(desc, p)  # selection counts its calls
    full, some = waves(table, desc.trans, device.lanes or 128, aligned, wide, parts, fetch)

    def last(left: NDArray[Any]) -> cost_model.Wave:
        i = (table.places >= left[:, None]).argmax(1) * len(left) + np.arange(len(left))
        return cost_model.Wave(some.iteration.take(i), some.writing.take(i), some.written)

    at_least = np.maximum(slices, 1.0)
    cycles = cost_model.launch_cycles(
        desc, K, table.columns, count * at_least, at_least, table.cluster, table.room, full, last, wide, device.compute_units,
        p,
    )  # fmt: skip
    found: NDArray[Any] = cost_model.seconds(cycles, slices > table.cluster, cost_model.hz(device))
    found[..., slices == 0] = math.inf
    return found


@functools.lru_cache(1)
def all_weighed(device: Device, desc: GemmDesc, table: Table) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the K slices of a table's rows, 0 for rows not weighed, and their predicted seconds.

    Tiles that add each sum up in one chain are not split. One result is cached: ``tiled`` reads the rows without clusters, then
    ``tiled_cluster`` those with clusters.
    """
    count, pieces = np.asarray(block_count(desc, table.columns)), list[int]()
    slices = table.slices(desc.K, count, PER_UNIT * device.compute_units) * table.chained
    if may_be_uncut(desc, table.of[0].tile):
        slices += table.uncut
        pieces = chain_lengths(desc.K, ONE_CHAIN)  # parts of K, one for each launch of an uncut row
    if len(pieces) < 2:
        return slices, weighed(device, desc, table, count, slices, desc.K)
    each = dict.fromkeys(pieces)
    seconds = weighed(device, desc, table, count, slices, np.array([[desc.K], *([k] for k in each)], float))
    return slices, np.where(table.uncut, sum(pieces.count(k) * one for k, one in zip(each, seconds[1:], strict=True)), seconds[0])


def weigh(device: Device, desc: GemmDesc, clustered: bool, most: int) -> list[tuple[float, Block, int]]:
    """Return (predicted seconds, block, slices) of the fastest rows, with or without clusters."""
    table = narrowed(device, *desc.widths[:2])
    return table.least(*all_weighed(device, desc, table), most, clustered)


def aligned_blocks(device: Device, desc: GemmDesc, side: int, split_side: int = 0) -> list[tuple[Block, int, float]]:
    """Return block, K slices and predicted seconds of what a vendor's library may have, aligned: sides of ``side`` and more.

    ``split_side``: least longer side of those whose sums are split.
    """
    table = narrowed(device, 4, 4, vendor=True)
    t, count = table.columns, np.asarray(block_count(desc, table.columns))
    slices = table.slices(desc.K, count, 0.0)
    slices *= (np.minimum(t.BM, t.BN) >= side) & ((table.share == 0) | (np.maximum(t.BM, t.BN) >= split_side))
    seconds = weighed(device, desc, table, count, slices, desc.K, aligned=True)
    return [(block, n, time) for time, block, n in table.least(slices, seconds, len(slices))]


# on a CPU


def cpu_work(device: Device, desc: GemmDesc, tile: Tile, slices: int) -> float:
    """Return the multiply-adds of the busiest core, edges included; three times as many for narrow vectors, which idle lanes."""
    waves: int = -(-block_count(desc, tile) * slices // device.compute_units)
    narrow = 1.0 if tile.TN and tile.TN >= 16 else 3.0
    return narrow * waves * tile.BM * tile.BN * slice_depth(desc.K, tile.BK or 1, slices)


CPU_RATE = 5e9
"""Multiply-adds a second that ``cpu_work`` counts as: a round number, which orders and promises nothing."""
