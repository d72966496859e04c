"""Cost models of fp32x: predicted seconds for each form of splitting, and the configurations weighed.

All candidates of a product are weighed in one loop over plain numbers: they are few, and NumPy calls on columns would take
longer. The numbers are in ``models/fp32x.json``, with what they were fitted to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias

from numpy.typing import NDArray

from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.config import (
    BLOCKS,
    BOTH,
    CLUSTERS,
    IN_FLIGHT,
    K_BLOCK,
    LONG,
    ONE,
    Fp32xConfig,
    aligned,
    in_flight,
    presplit,
)
from toprung.kernels.hopper_fp32x.sizes import SHORTEST, matrices

BEFOREHAND, FLIGHT, PRESPLIT = (SimpleNamespace(**cost_model.fitted("fp32x")[form]) for form in ("beforehand", "in_flight", "one"))
"""Numbers of the models: both operands split beforehand, in flight, and B alone beforehand; ``means`` in the file explains each."""
BEFOREHAND.tiles = dict(zip(BLOCKS[BOTH], BEFOREHAND.tiles, strict=True))
FLIGHT.times = dict(zip(BLOCKS[IN_FLIGHT], FLIGHT.times, strict=True))
PRESPLIT.times = {size: dict(zip(BLOCKS[ONE], times, strict=True)) for size, times in PRESPLIT.times.items()}

WEIGHED: Mapping[str, Sequence[Fp32xConfig]] = {
    BOTH: [Fp32xConfig(*shape) for shape in ((2, 128, 4), (2, 64, 4), (1, 64, 8, 16), (1, 32, 8, 16))],
    IN_FLIGHT: [in_flight(*block, n) for block, n in (*zip(BLOCKS[IN_FLIGHT], (4, 6, 8, 5, 8), strict=True), *LONG.items())],
    ONE: [presplit(*block, n) for block, n in zip(BLOCKS[ONE], (5, 7), strict=True)],
}
"""Blocks that are weighed, by form; clusters and parts of K follow from the product.

Rings have as many stages as shared memory allows for the blocks that an SM has registers for; long rings come last. With both
operands split, tiles 128 high leave part of an SM's shared memory unused: more stages were no faster (``stages.json``), and slower
with slices of K."""
CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
"""Share of the SMs that clusters of so many blocks can have at once: they lie in one GPC, and not all have a multiple of four."""
GPC, LARGE = 8, 132
"""SMs of a GPC that a cluster may take up; and SMs of a GPU from which on it may take up more: others have fewer in some GPCs."""

Rows: TypeAlias = list[tuple[Fp32xConfig, int]]
"""Configurations of one form, each with its number of parts of K."""


@functools.cache
def in_clusters(form: str) -> list[tuple[Fp32xConfig, Fp32xConfig | None]]:
    """Return each block of a form in clusters of each size, of up to 8 with B split, paired with its long-ring form or None."""
    long = {(one.CONSUMERS, one.BN): one for one in WEIGHED[form] if one.is_alone}
    every = [(one, long.get((one.CONSUMERS, one.BN))) for one in WEIGHED[form] if not one.is_alone]
    return [
        (replace(one, SLICES=n), other and replace(other, SLICES=n))
        for one, other in every
        for n in CLUSTERS[: 4 if form == ONE else 5]
    ]


@functools.cache
def places(units: int) -> dict[int, int]:
    """Return the number of blocks that run at once with one block per SM, by cluster size."""
    return {n: int(units * share) // n * n for n, share in CLUSTERED.items()}


@functools.cache
def blocks_at_once(config: Fp32xConfig, units: int) -> int:
    """Return the number of blocks that run at once, each cluster in a GPC; 0 if none can. Cached: selection asks often."""
    within = units >= LARGE or config.SLICES <= GPC * config.resident
    return places(units)[config.SLICES] * config.resident if within else 0


def fetch_time(desc: GemmDesc, p: SimpleNamespace) -> float:
    """Return the seconds of reading one column of a C tile in flight, where β is not 0; only accesses of four floats are ahead."""
    return cost_model.fetch_time(desc, p) * (4 // desc.widths[2])


# candidates


def weighed(desc: GemmDesc, units: int, like: Fp32xConfig) -> Rows:
    """Return what is weighed of a form: that of ``like``, with parts of K or with slices in clusters."""
    return (in_parts if like.adds else in_slices)(desc, units, like.split)


def in_parts(desc: GemmDesc, units: int, form: str = IN_FLIGHT) -> Rows:
    """Return the blocks of a form with as many parts of K, none empty, as fill the SMs.

    Beforehand that is one part, and what fills the device one to three times; in flight, parts that fill the SMs once or twice, one
    block per SM with a long ring. ``supports`` refuses batches in flight, and is asked first.
    """
    most, chunks, found = most_slices(desc), -(-desc.K // K_BLOCK) or 1, Rows()
    for block in WEIGHED[form]:
        count, last = -(-desc.M // block.BM) * -(-desc.N // block.BN) * desc.batch or 1, int(form == IN_FLIGHT)
        if form == BOTH and block.BN == 128 and count >= BEFOREHAND.many * units:
            block = replace(block, STAGES=6)
        for blocks in range(4) if form == BOTH else (1,) if block.is_alone else (block.resident, 2 * block.resident):  # per SM
            depth = -(-chunks // max(1, min(blocks * units // count, most)))  # k-blocks of a part
            if (parts := -(-chunks // depth)) != last:
                found.append((block, parts))
            last = parts
    return found


def most_slices(desc: GemmDesc) -> int:
    """Return the most slices of K whose results take no more memory than the operands, each with ``SHORTEST`` of K."""
    return max(1, min(desc.K // SHORTEST, desc.K * desc.rows_read // max(desc.M * -(-desc.N // 4) * 4 * desc.batch, 1)))


def in_slices(desc: GemmDesc, units: int, form: str = IN_FLIGHT) -> Rows:
    """Return the blocks of a form with all of K, and with slices while they leave SMs idle.

    Where all blocks run at once with one block per SM, the long ring replaces the short one. B alone is split for some widths of C,
    and not where each product of a batch has a B of its own: in flight that takes as long by both models, and was measured there.
    """
    p, found = PRESPLIT if form == ONE else FLIGHT, Rows()
    if form == ONE and (
        (desc.batch > 1 and desc.stride_b) or not p.narrowest <= desc.N <= p.widest[str(ELEMENT_BYTES[desc.type_a])]
    ):
        return found
    for one, long in in_clusters(form):
        blocks = -(-desc.M // one.BM) * -(-desc.N // one.BN) * desc.batch * one.SLICES
        fits = blocks <= blocks_at_once(one, units)
        if one.SLICES == 1 or (fits and one.SLICES * p.least_slice <= desc.K):
            found.append((long if fits and long and blocks <= blocks_at_once(long, units) else one, 1))
    return found


# both operands split beforehand


def beforehand_times(desc: GemmDesc, units: int, rows: Rows, short: bool = True) -> list[tuple[float, int]]:
    """Return each row's predicted seconds of all launches, none of which the host is the limit of.

    ``short``: False to leave out what a short K adds. It grows with C, not with the tile: tiles are selected without it.
    """
    p, results, chunks, found = BEFOREHAND, desc.M * desc.N * desc.batch, -(-desc.K // K_BLOCK), []
    moving = 4 * desc.rows_read * desc.K / cost_model.MEMORY_RATE
    odd, fetch = p.odd * results / units if desc.widths[2] == 1 else 0.0, 0.0 if desc.beta_zero else cost_model.fetch_time(desc, p)
    splitting, along = 0.0, 0
    a, b = desc.M * (desc.batch if desc.stride_a else 1), desc.N * (desc.batch if desc.stride_b else 1)
    for side, across in ((a, desc.trans_a), (b, not desc.trans_b)):
        splitting += 8 * side * desc.K / (p.across_rate if across else p.split_rate)
        along += 0 if across else side
    splitting += along * max(p.least_row - 8 * desc.K / p.split_rate, 0.0)
    more = p.short_tail * max(1 - desc.K / p.short, 0.0) * short
    for tile, parts in rows:
        waves = -(-(-(-desc.M // tile.BM) * -(-desc.N // tile.BN) * desc.batch * parts) // units)
        depth = -(-chunks // parts) * K_BLOCK if parts > 1 else desc.K
        multiply = max(waves * (p.tiles[tile.CONSUMERS, tile.BN] * depth + p.tail * tile.BM * tile.BN), moving)
        ending = odd + waves * fetch * min(tile.BN, desc.N)
        seconds = multiply + (p.launch + 4 * (parts + 1) * results / p.reduce_rate if parts > 1 else ending)
        found.append((seconds + (2 * p.launch + splitting + (waves * (more * tile.BM * tile.BN) if parts == 1 else 0.0)), 0))
    return found


# in flight: a block works through its tiles one after the other, at a cost for each k-block of 32 and one for each tile


@functools.cache
def times(
    align_a: int, align_b: int, type_a: str = "float32", type_b: str = "float32"
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return each block's seconds per k-block of 32 and per tile, by the operands' types and alignment."""
    share, wider = FLIGHT.shares[f"{type_a} {type_b}"]
    more_a, more_b = ELEMENT_BYTES[type_a] / 16 * (1 / align_a - 1 / 4), ELEMENT_BYTES[type_b] / 16 * (1 / align_b - 1 / 4)
    return {
        (consumers, cols): (chunk * share * (cols / 64) ** wider + FLIGHT.copy * (64 * consumers * more_a + cols * more_b), tile)
        for (consumers, cols), (chunk, tile) in FLIGHT.times.items()
    }


def in_flight_times(desc: GemmDesc, units: int, rows: Rows) -> list[tuple[float, int]]:
    """Return each row's predicted seconds, adding up parts of K included, and its number of launches."""
    p, results, chunks, found = FLIGHT, desc.M * desc.N * desc.batch, -(-desc.K // K_BLOCK), []
    each = times(*aligned(desc), desc.type_a, desc.type_b)
    odd, at_once, read = p.odd * results / units if desc.widths[2] == 1 else 0.0, places(units), desc.bytes_read
    fetch = 0.0 if desc.beta_zero else fetch_time(desc, p)
    for one, parts in rows:
        (chunk, tile), slices, shares = each[one.CONSUMERS, one.BN], one.SLICES, one.SLICES * parts
        turns = -(-(-(-desc.M // one.BM) * -(-desc.N // one.BN) * desc.batch * shares) // (at_once[slices] * one.resident))
        work = turns * -(-chunks // shares) * chunk + tile * (1 + p.again * (turns - 1))
        if one.is_alone:
            work *= p.sole
        if shares == 1 and one.BN == 32:
            work += odd
        if parts == 1:
            work += turns * fetch * min(one.BN, desc.N) / slices
        if slices > 1:
            work += p.met + p.meet * slices + p.passing * (one.BM * one.BN * (1 - 1 / slices) * one.resident)
        # work and memory traffic overlap only in part
        seconds = p.launch + math.hypot(work, (read + 4 * parts * results) / p.memory_rate)
        if parts > 1:
            seconds += p.adding + p.part * parts + 4 * (parts + 1) * results / BEFOREHAND.reduce_rate
        found.append((seconds, 1 + (parts > 1)))
    return found


def share(desc: GemmDesc, units: int) -> float:
    """Return the predicted seconds that a product adds to a group's launch: all SMs share its tiles, and its bytes."""
    found, each, chunks = math.inf, times(*aligned(desc)), -(-desc.K // K_BLOCK)
    for one in (one for one in WEIGHED[IN_FLIGHT] if not one.is_alone):
        chunk, tile = each[one.CONSUMERS, one.BN]
        found = min(found, block_count(desc, one) * (chunks * chunk + tile) / (one.resident * units))
    moved = 4 * (desc.rows_read * desc.K + desc.M * desc.N * desc.batch) / FLIGHT.memory_rate
    return float(max(found, moved))


def seconds_of_group(sizes: NDArray[Any], config: Fp32xConfig, align_a: int, align_b: int, units: int) -> float:
    """Return the predicted seconds of a group's launch: those of its first block.

    ``sizes``: as ``cost_model.group_sizes`` returns them.
    """
    (M, N, K), (chunk, tile) = sizes, times(align_a, align_b)[config.CONSUMERS, config.BN]
    depths, _ = cost_model.first_block(sizes, config, units)
    work = float((-(-depths // K_BLOCK) * chunk).sum()) + tile * (1 + FLIGHT.again * (len(depths) - 1))
    work *= FLIGHT.sole if config.is_alone else 1.0
    return float(FLIGHT.launch + math.hypot(work, 4 * float(((M + N) * K + M * N).sum()) / FLIGHT.memory_rate))


# B split beforehand, A in flight

PIECES = 4
"""Rows that a warpgroup claims at a time up to K = ``round_short``, as ``claimed.cuh`` has it."""


def presplit_times(desc: GemmDesc, units: int, rows: Rows) -> list[tuple[float, int]]:
    """Return the predicted seconds of a product whose B is split, and the launches.

    If K runs along memory, and that is faster, the product's launch splits B itself; else a launch before it does.
    """
    p, size, chunks, found = PRESPLIT, ELEMENT_BYTES[desc.type_a], -(-desc.K // K_BLOCK), []
    split = desc.N * matrices(desc.stride_b, desc.batch)
    before = p.before + 8 * split * desc.K / (BEFOREHAND.split_rate if desc.trans_b else BEFOREHAND.across_rate)
    copying = FLIGHT.copy * (size / 16) * (1 / aligned(desc)[0] - 1 / 4)
    claims = ceil(split, PIECES) if desc.K <= p.round_short else split
    a_round = p.short_round + (p.round - p.short_round) * min(desc.K / p.round_short, 1.0)
    a_round = a_round * max(desc.K / p.round_long, 1.0) if desc.trans_b else math.inf
    moving = (desc.bytes_read + 4 * desc.M * desc.N * desc.batch) / FLIGHT.memory_rate
    fetch = 0.0 if desc.beta_zero else fetch_time(desc, FLIGHT)
    for one, _ in rows:
        (chunk, tile), room = p.times[str(size)][one.CONSUMERS, one.BN], places(units)[one.SLICES] * one.resident
        count = -(-desc.M // one.BM) * -(-desc.N // one.BN) * desc.batch * one.SLICES
        inside = -(-claims // (min(count, room) * (one.CONSUMERS + 1))) * a_round
        work = -(-count // room) * (
            -(-chunks // one.SLICES) * (chunk + copying * one.BM) + tile + fetch * min(one.BN, desc.N) / one.SLICES
        )
        found.append((p.launch + max(work, moving) + min(inside, before), 1 + (inside > before)))
    return found


# any form

TIMES = {BOTH: beforehand_times, IN_FLIGHT: in_flight_times, ONE: presplit_times}
"""Functions that return the predicted seconds of all launches on the device, and the launches that the host may be the limit of."""


def total(desc: GemmDesc, units: int, rows: Rows) -> list[float]:
    """Return the predicted seconds: of all launches, or the host's where that is the limit; the device's break ties."""
    found, host = [], cost_model.HOST.launch
    for seconds, launches in TIMES[rows[0][0].split](desc, units, rows) if rows else ():
        found.append(max(seconds, host * launches) + cost_model.TIE * seconds * (launches > 0))
    return found


def alone(desc: GemmDesc, config: Fp32xConfig, units: int) -> tuple[float, int]:
    """Return a configuration's predicted seconds on the device and number of launches, as ``TIMES`` do."""
    return TIMES[config.split](desc, units, [(config, config.k_parts)])[0]
