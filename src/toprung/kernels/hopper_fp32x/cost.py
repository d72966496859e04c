"""Cost models: predicted seconds of a product by where its operands are split, and the configurations that are weighed.

All candidates of a product are weighed at once, in columns; a configuration by itself is a column of one. The numbers are in
``models/fp32x.json``, with what they were fitted to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.config import (
    BLOCKS,
    BOTH,
    CHUNK,
    CLUSTERS,
    IN_FLIGHT,
    LONG,
    ONE,
    Fp32xConfig,
    aligned,
    in_flight,
    presplit,
    tiles,
)
from toprung.kernels.hopper_fp32x.sizes import SHORTEST, matrices, padded
from toprung.kernels.hopper_fp32x.strassen import PRODUCTS, half, pieces
from toprung.kernels.split_k import slice_depth, whole_slices

BEFOREHAND, FLIGHT, PRESPLIT = (SimpleNamespace(**cost_model.fitted("fp32x")[form]) for form in ("beforehand", "in_flight", "one"))
"""Numbers of the models: both operands split beforehand, in flight, and B alone beforehand; ``means`` in the file explains each."""
BEFOREHAND.tiles, FLIGHT.times = np.array(BEFOREHAND.tiles), np.array(FLIGHT.times)
PRESPLIT.times = {size: np.array(times) for size, times in PRESPLIT.times.items()}

WEIGHED = (
    Fp32xConfig(STAGES=4),
    Fp32xConfig(BN=64, STAGES=4),
    Fp32xConfig(CONSUMERS=1, BN=64, STAGES=8, GROUP=16),
    Fp32xConfig(CONSUMERS=1, BN=32, STAGES=8, GROUP=16),
)
"""Tiles that are weighed. Those 128 high have stages that leave part of an SM's shared memory: with more they were as fast at best
(``stages.json``), and with slices of K slower."""
STAGES: Mapping[tuple[int, int], int] = {(2, 128): 4, (2, 64): 6, (2, 32): 8, (1, 64): 5, (1, 32): 8}
"""Stages of the ring: as many as fit into as many blocks as an SM has registers for."""
RINGS = tuple((*block, stages) for ring in (STAGES, LONG) for block, stages in ring.items())
"""Consumers, columns and stages of every block that is weighed."""
CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
"""Share of the SMs that clusters of so many blocks can have at once: they lie in one GPC, and not all have a multiple of four."""
GPC, LARGE = 8, 132
"""SMs of a GPC that a cluster may take up; and SMs of a GPU from which on it may take up more: others have fewer in some GPCs."""
PRESPLIT_STAGES: Mapping[tuple[int, int], int] = dict(zip(BLOCKS[ONE], (5, 7), strict=True))
"""Stages of the ring that fit, by consumers and columns."""
TABLES: Mapping[str, Sequence[Fp32xConfig]] = {
    BOTH: [replace(one, k_parts=n) for one in WEIGHED for n in (1, 2, 3, 4)],
    IN_FLIGHT: [
        in_flight(*block, n, SLICES=s) for block, ring in STAGES.items() for s in CLUSTERS for n in (ring, LONG.get(block)) if n
    ],
    "parts": [one for ring in RINGS for n in (1, 2) if not (one := in_flight(*ring, k_parts=n)).is_alone or n == 1],
    ONE: [presplit(*block, ring, SLICES=s) for block, ring in PRESPLIT_STAGES.items() for s in CLUSTERS[:4]],
}
"""Configurations that are weighed, by the form. Parts of K follow from a product's sizes. Long rings come last."""

Column: TypeAlias = Any
"""Type of a column of numbers."""


class Columns(NamedTuple):
    """Configurations of one form, and their numbers in columns.

    Attributes
    ----------
    units : SMs of the GPU
    configs : the configurations, except for ``k_parts`` and rings that follow from the product
    kept : True for those that are weighed for a product
    block : place of a configuration's block in ``BLOCKS``
    BM, BN, SLICES, k_parts, resident, is_alone : as in ``Fp32xConfig``
    at_once : blocks that run at once
    """

    units: int
    configs: tuple[Fp32xConfig, ...]
    kept: Column
    block: Column
    BM: Column
    BN: Column
    SLICES: Column
    k_parts: Column
    resident: Column
    is_alone: Column
    at_once: Column

    def config(self, i: int) -> Fp32xConfig:
        """Return a configuration by its place."""
        one, parts = self.configs[i], int(self.k_parts[i])
        return one if parts == one.k_parts else replace(one, k_parts=parts)

    def found(self) -> list[Fp32xConfig]:
        """Return the configurations that are weighed."""
        found = []
        for one, parts, kept in zip(self.configs, self.k_parts.tolist(), self.kept.tolist(), strict=True):
            if kept:
                found.append(one if parts == one.k_parts else replace(one, k_parts=parts))
        return found


@functools.lru_cache(1024)
def columns(units: int, *configs: Fp32xConfig) -> Columns:
    """Return configurations of one form in columns."""
    block = [BLOCKS[c.split].index((c.CONSUMERS, c.BN)) for c in configs]
    numbers = [(c.BM, c.BN, c.SLICES, c.k_parts, c.resident, c.is_alone, at_once(c, units)) for c in configs]
    return Columns(units, configs, np.ones(len(configs), bool), np.array(block), *np.array(numbers, np.int64).T)


def at_once(config: Fp32xConfig, units: int) -> int:
    """Return how many blocks run at once."""
    return int(units * CLUSTERED[config.SLICES]) // config.SLICES * config.SLICES * config.resident


@functools.cache
def table(units: int, form: str) -> Columns:
    """Return ``TABLES`` of a form in columns."""
    return columns(units, *TABLES[form])


def cut(desc: GemmDesc, c: Columns, parts: Column, least: int) -> Columns:
    """Return configurations with so many parts of K, none of them empty; kept are those from ``least`` on, and none twice."""
    parts = whole_slices(desc.K, CHUNK, np.maximum(parts, 1)) if desc.K else np.ones_like(parts)
    again = (c.k_parts[1:] > 1) & (parts[1:] == parts[:-1])
    return c._replace(kept=(parts >= least) & ~np.append(False, again), k_parts=parts)


# both operands split beforehand


QUARTERS = 4
"""Quarters of an operand that Strassen's splitting pass fetches from memory: what it reads again comes from L2."""


def both(desc: GemmDesc, units: int) -> Columns:
    """Return what is weighed: each tile with all of K, and with slices that fill the device once, twice or three times.

    Their results take no more memory than the operands, and a slice has ``SHORTEST`` of K at least.
    """
    c = table(units, BOTH)
    filling = (c.k_parts - 1) * units // np.maximum(tiles(desc, c), 1)  # none at first: all of K
    return cut(desc, c, np.minimum(filling, most_slices(desc)), 1)


def select_config(desc: GemmDesc, units: int) -> Fp32xConfig:
    """Return the tile and slices with which all is done first; the larger tile and the fewer slices where that is equal."""
    return least(desc, units)[1]


def least(desc: GemmDesc, units: int) -> tuple[float, Fp32xConfig]:
    """Return the predicted seconds of all launches with ``select_config``, and that."""
    c = both(desc, units)
    product = product_time(desc, c)
    i = int(np.where(c.kept, product, math.inf).argmin())
    found = c.config(i)
    if found.BN == 128 and tiles(desc, found) >= BEFOREHAND.many * units:
        found = replace(found, STAGES=6)
    return float(product[i] + beside(desc, c)[i]), found


def most_slices(desc: GemmDesc) -> int:
    """Return the most slices of K whose results take no more memory than the operands, each with ``SHORTEST`` of K."""
    return max(1, min(desc.K // SHORTEST, desc.K * desc.rows_read // max(desc.M * padded(desc.N) * desc.batch, 1)))


def waves(desc: GemmDesc, c: Columns) -> Column:
    """Return the tiles of the fullest SM."""
    return -(-tiles(desc, c) * c.k_parts // c.units)


def product_time(desc: GemmDesc, c: Columns) -> Column:
    """Return the seconds of the second launch beyond its start, and all of the third."""
    p, results, split = BEFOREHAND, desc.M * desc.N * desc.batch, c.k_parts > 1
    depth = np.where(split, slice_depth(desc.K, CHUNK, c.k_parts), desc.K)
    tile = p.tiles[c.block] * depth + p.tail * c.BM * c.BN
    multiply = np.maximum(waves(desc, c) * tile, 4 * desc.rows_read * desc.K / cost_model.MEMORY_RATE)
    odd = p.odd * results / c.units * (desc.widths[2] == 1)
    return multiply + np.where(split, p.launch + 4 * (c.k_parts + 1) * results / p.reduce_rate, odd)


def _sides(desc: GemmDesc) -> list[tuple[int, bool]]:
    """Return the rows of both operands that are split, and True where their K runs across memory."""
    a, b = desc.M * matrices(desc.stride_a, desc.batch), desc.N * matrices(desc.stride_b, desc.batch)
    return [(a, desc.trans_a), (b, not desc.trans_b)]


def split_time(desc: GemmDesc) -> float:
    """Return the seconds of the first launch beyond its start."""
    p = BEFOREHAND
    return float(sum([8 * rows * desc.K / (p.across_rate if across else p.split_rate) for rows, across in _sides(desc)]))


def beside(desc: GemmDesc, c: Columns) -> Column:
    """Return the seconds of all launches beyond ``product_time``: of starts, of splitting, and what a short K takes.

    Tile and slices are selected without them: what a short K takes grows with C, whatever its tiles.
    """
    p = BEFOREHAND
    rows = sum([rows for rows, across in _sides(desc) if not across])
    splitting = split_time(desc) + rows * max(p.least_row - 8 * desc.K / p.split_rate, 0.0)
    tile = p.short_tail * max(1 - desc.K / p.short, 0.0) * c.BM * c.BN
    return 2 * p.launch + splitting + waves(desc, c) * tile * (c.k_parts == 1)


def strassen_seconds(desc: GemmDesc, units: int) -> float:
    """Return the predicted seconds of a level of Strassen: of its products, and by the bytes of the other launches."""
    total, q, one = 0.0, BEFOREHAND, columns(units, Fp32xConfig())
    for p in pieces(desc):
        m, n, k = half(p.rows), half(p.cols), half(p.depth)
        for rows, across in ((m, desc.trans_a), (n, not desc.trans_b)):
            total += 4 * rows * k * (QUARTERS + PRODUCTS) / (q.across_rate if across else q.split_rate)
        seven = GemmDesc(m, n, k, batch=PRODUCTS, stride_a=m * k, stride_b=k * n, stride_c=m * n)
        total += float(product_time(seven, one)[0])
        total += 4 * m * n * (PRODUCTS + QUARTERS) / q.reduce_rate + 4 * q.launch
    return float(total)


# in flight: a block works through its tiles one after the other, at a cost for each k-block of 32 and one for each tile


def in_flight_columns(desc: GemmDesc, units: int) -> Columns:
    """Return what is weighed: each block with all of K, and with slices while they leave SMs idle.

    A ring that leaves no room for a second block takes the other's place where the SMs have room for all blocks.
    """
    c = table(units, IN_FLIGHT)
    room = fits(c, tiles(desc, c))
    kept = room & (c.SLICES * FLIGHT.least_slice <= desc.K) | (c.SLICES == 1) & (c.is_alone == 0)
    kept[:-1] &= ~(room & (c.is_alone == 1))[1:]
    return c._replace(kept=kept)


def parts_columns(desc: GemmDesc, units: int) -> Columns:
    """Return what is weighed: each block, with parts of K that give the SMs as many blocks as they can have, or twice as many, and
    with a long ring parts that give each SM one.

    Their results take no more memory than the operands. There are none for batches, which have blocks enough.
    """
    c = table(units, "parts")
    most = 1 if desc.batch > 1 else min(desc.K // SHORTEST, desc.K * (desc.M + desc.N) // (desc.M * padded(desc.N)))
    return cut(desc, c, np.minimum(c.k_parts * c.resident * units // tiles(desc, c), most), 2)


def fits(c: Columns, count: Column) -> Column:
    """Return True where the blocks of so many tiles run at once, each cluster in a GPC."""
    gpc = c.SLICES if c.units >= LARGE else GPC * c.resident
    return (count * c.SLICES <= c.at_once) & (c.SLICES <= gpc)


def times(c: Columns, align_a: int, align_b: int, type_a: str = "float32", type_b: str = "float32") -> Column:
    """Return the seconds of a k-block of 32 and of a tile, by the types of the operands and the words that they are aligned to."""
    chunk, tile = FLIGHT.times[c.block].T
    share, wider = FLIGHT.shares[f"{type_a} {type_b}"]
    more_a, more_b = ELEMENT_BYTES[type_a] / 16 * (1 / align_a - 1 / 4), ELEMENT_BYTES[type_b] / 16 * (1 / align_b - 1 / 4)
    return np.array([chunk * share * (c.BN / 64) ** wider + FLIGHT.copy * (c.BM * more_a + c.BN * more_b), tile])


def in_flight_seconds(desc: GemmDesc, c: Columns) -> Column:
    """Return the predicted seconds of the launch, and with parts of K of the one that adds them up."""
    p, shares = FLIGHT, c.SLICES * c.k_parts
    chunk, tile = times(c, *aligned(desc), desc.type_a, desc.type_b)
    turns = -(-tiles(desc, c) * shares // c.at_once)
    work = turns * (slice_depth(desc.K, CHUNK, shares) // CHUNK) * chunk + tile * (1 + p.again * (turns - 1))
    work *= np.where(c.is_alone, p.sole, 1.0)
    results = desc.M * desc.N * desc.batch
    if desc.widths[2] == 1:
        work += p.odd * results / c.units * ((shares == 1) & (c.BN == 32))
    passed = c.BM * c.BN * (1 - 1 / c.SLICES) * c.resident
    work += np.where(c.SLICES > 1, p.met + p.meet * c.SLICES + p.passing * passed, 0.0)
    moved = (desc.bytes_read + 4 * c.k_parts * results) / p.memory_rate
    # neither hides the other altogether. Why a part takes time beyond its bytes is not known: adding 128 takes 2 µs more than
    # adding two (``results/nvidia-h200/split-k.json``)
    adding = p.adding + p.part * c.k_parts + 4 * (c.k_parts + 1) * results / BEFOREHAND.reduce_rate
    return p.launch + np.hypot(work, moved) + np.where(c.k_parts > 1, adding, 0.0)


def share(desc: GemmDesc, units: int) -> float:
    """Return the predicted seconds that a product adds to a group's launch: all SMs share its tiles, and its bytes."""
    c = table(units, IN_FLIGHT)
    chunk, tile = times(c, *aligned(desc))
    found = tiles(desc, c) * (ceil(desc.K, CHUNK) * chunk + tile) / (c.resident * units)
    moved = 4 * (desc.rows_read * desc.K + desc.M * desc.N * desc.batch) / FLIGHT.memory_rate
    return float(max(found[c.is_alone == 0].min(), moved))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a group's products, largest K first."""

    M: NDArray[Any]
    N: NDArray[Any]
    K: NDArray[Any]

    @classmethod
    def of(cls, descs: Sequence[GemmDesc]) -> Sizes:
        """Return the sizes of products, one matrix each."""
        found = np.array([(d.M, d.N, d.K) for d in descs], np.int64)
        return cls(*found[np.argsort(-found[:, 2], kind="stable")].T)

    def seconds(self, config: Fp32xConfig, align_a: int, align_b: int, units: int) -> float:
        """Return the predicted seconds of a launch: those of its first block, which has the longest tile in each turn."""
        (chunk,), (tile,) = times(columns(units, config), align_a, align_b)
        ends = np.cumsum(-(-self.M // config.BM) * -(-self.N // config.BN))
        turns = np.arange(0, ends[-1], config.resident * units)
        work = float((-(-self.K[np.searchsorted(ends, turns, "right")] // CHUNK) * chunk).sum())
        work += tile * (1 + FLIGHT.again * (len(turns) - 1))
        work *= FLIGHT.sole if config.is_alone else 1.0
        moved = 4 * float(((self.M + self.N) * self.K + self.M * self.N).sum()) / FLIGHT.memory_rate
        return float(FLIGHT.launch + math.hypot(work, moved))


def group_config(sizes: Sizes, align_a: int, align_b: int, units: int) -> Fp32xConfig:
    """Return the block that a group is predicted to take least time with."""
    return min((in_flight(*ring) for ring in RINGS), key=lambda config: sizes.seconds(config, align_a, align_b, units))


# B split beforehand, A in flight

PIECES = 4
"""Rows that a warpgroup claims at a time up to K = ``round_short``, as ``claimed.cuh`` has it."""


def presplit_columns(desc: GemmDesc, units: int) -> Columns:
    """Return what is weighed: each block with all of K, and with slices while they leave SMs idle; nothing for other N.

    Nothing either where each product of a batch has a B of its own: in flight that takes as long by both models, and was measured
    there.
    """
    c, p = table(units, ONE), PRESPLIT
    if (desc.batch > 1 and desc.stride_b) or not p.narrowest <= desc.N <= p.widest[str(ELEMENT_BYTES[desc.type_a])]:
        return c._replace(kept=c.BM < 0)
    room = (tiles(desc, c) * c.SLICES <= c.at_once) & (p.least_slice * c.SLICES <= desc.K)
    return c._replace(kept=room | (c.SLICES == 1))


def split_seconds(desc: GemmDesc, c: Columns) -> tuple[Column, float]:
    """Return the seconds in which B is split: by the product's launch, infinite where K runs across memory, and by one before."""
    p, rows = PRESPLIT, desc.N * matrices(desc.stride_b, desc.batch)
    rate = BEFOREHAND.split_rate if desc.trans_b else BEFOREHAND.across_rate
    before = p.before + 8 * rows * desc.K / rate
    if not desc.trans_b:
        return np.full(len(c.configs), math.inf), before
    blocks = np.minimum(tiles(desc, c) * c.SLICES, c.at_once)
    claims = ceil(rows, PIECES) if desc.K <= p.round_short else rows
    rounds = -(-claims // (blocks * (c.BM // 64 + 1)))
    each = p.short_round + (p.round - p.short_round) * min(desc.K / p.round_short, 1.0)
    return rounds * each * max(desc.K / p.round_long, 1.0), before


def presplit_seconds(desc: GemmDesc, c: Columns) -> Column:
    """Return the predicted seconds of a product whose B is split."""
    size = ELEMENT_BYTES[desc.type_a]
    chunk, tile = PRESPLIT.times[str(size)][c.block].T
    chunk += FLIGHT.copy * c.BM * (size / 16) * (1 / aligned(desc)[0] - 1 / 4)
    turns = -(-tiles(desc, c) * c.SLICES // c.at_once)
    work = turns * (-(-ceil(desc.K, CHUNK) // c.SLICES) * chunk + tile)
    moved = (desc.bytes_read + 4 * desc.M * desc.N * desc.batch) / FLIGHT.memory_rate
    return PRESPLIT.launch + np.maximum(work, moved)


# any form


def weigh(desc: GemmDesc, c: Columns) -> tuple[Column, Column]:
    """Return the predicted seconds of all launches on the device, and the launches that the host may be the limit of."""
    split = c.configs[0].split
    if split == BOTH:
        return product_time(desc, c) + beside(desc, c), np.zeros(len(c.configs))
    if split == IN_FLIGHT:
        return in_flight_seconds(desc, c), 1 + (c.k_parts > 1)
    inside, before = split_seconds(desc, c)
    return presplit_seconds(desc, c) + np.minimum(inside, before), 1 + (inside > before)


def total(desc: GemmDesc, c: Columns) -> Column:
    """Return the predicted seconds: of all launches, or the host's where that is the limit; the device's break ties."""
    device, launches = weigh(desc, c)
    return np.maximum(device, cost_model.HOST.launch * launches) + cost_model.TIE * device * (launches > 0)


def seconds(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the predicted seconds of all launches of one configuration on the device."""
    return float(weigh(desc, columns(units, config))[0][0])


def launch_count(desc: GemmDesc, config: Fp32xConfig, units: int) -> int:
    """Return the launches of a product split in flight, a pass over B and the sum of parts included."""
    return int(weigh(desc, columns(units, config))[1][0])
