"""Cost models: predicted seconds of a product by where its operands are split, and the configurations that are weighed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    LONG,
    ONE,
    Fp32xConfig,
    aligned,
    in_flight,
    presplit,
    tiles,
)
from toprung.kernels.hopper_fp32x.sizes import SHORTEST, depth_of, matrices, padded, trimmed
from toprung.kernels.hopper_fp32x.strassen import PRODUCTS, half, pieces
from toprung.kernels.split_k import slice_depth

# both operands split beforehand

COSTS: Mapping[Fp32xConfig, float] = {
    Fp32xConfig(STAGES=4): 17.6,
    Fp32xConfig(BN=64, STAGES=4): 11.2,
    Fp32xConfig(CONSUMERS=1, BN=64, STAGES=8, GROUP=16): 6.8,
    Fp32xConfig(CONSUMERS=1, BN=32, STAGES=8, GROUP=16): 4.5,
}
BY_AREA: Mapping[int, float] = {v.BM * v.BN: cost for v, cost in COSTS.items()}
"""``COSTS``: tiles that are weighed, each with the nanoseconds that an element of K takes where every SM has one. Those
128 high have stages that leave part of an SM's shared memory: with more they were as fast at best (``stages.json``, see ``MANY``),
and with slices of K slower.

Here and below, where nothing else is said: fitted to bursts of 512 to 4096 cubed on an H200 (``benchmarks/hopper.py`` of 32569d8),
which they meet within a tenth; 128 x 128 to those of ``tune-check-seed31.json`` and ``deep-and-odd.json``.
``BY_AREA``: the same by a tile's elements, for those that only a tuner tries."""
MANY = 64
"""Tiles of 128 x 128 for each SM from which on six stages are taken: 1.4 % faster at 16384 cubed, 0.3 % slower at 8192 cubed
(``results/nvidia-h100-80gb-hbm3/stages.json``)."""
TAIL = 0.15
"""Nanoseconds for each element of a tile's C, once."""
FIRST_LAUNCH = 4e-6
"""Seconds of a launch that does nothing."""
SPLIT_RATE, ACROSS_RATE = 3.6e12, 3.0e12
"""Bytes a second of the splitting pass, what it reads and what it writes: of rows that lie along K, and of those that lie across.

The first fitted to the launch alone on an H200 (``results/nvidia-h200/split-k.json``), in the slices chosen there and 65536 x 64 x
4096; the second is as much less as operands of 64 MB and more take longer in ``splitting-pass.json``."""
REDUCE_RATE = 4.3e12
"""Bytes a second at which the results of slices are read and added: fitted to ``split-k.json``, where there are 50 MB and more."""
SHORT, SHORT_TAIL = 512, 0.2
"""K below which little of it hides a tile's end, and nanoseconds more for each element of C, all of them at K = 0.

With ``LEAST_ROW`` fitted to K from 64 to 256 in ``results/nvidia-h200/torch-products.json``, which both meet within a sixth."""
LEAST_ROW = 0.75e-9
"""Least seconds of a row that lies along K in the splitting pass."""
ODD = 0.12e-9
"""Seconds of an SM for each result of C whose rows begin anywhere: by 262144 x 513 x 256 and 4096 x 50257 x 1024 of
``results/nvidia-h200/deep-and-odd.json``."""
QUARTERS = 4
"""Quarters of an operand that Strassen's splitting pass fetches from memory: what it reads again comes from L2."""


def waves(desc: GemmDesc, config: Fp32xConfig, units: int) -> int:
    """Return the tiles of the fullest SM."""
    return -(-tiles(desc, config) * config.k_parts // units)


def select_config(desc: GemmDesc, units: int) -> Fp32xConfig:
    """Return the tile and slices with which all is done first; the larger tile and the fewer slices where that is equal."""
    return min(configs(desc, units), key=functools.partial(product_time, desc, units=units))


def configs(desc: GemmDesc, units: int) -> list[Fp32xConfig]:
    """Return what is weighed: each tile with all of K, and with slices that fill the device once, twice or three times.

    Their results take no more memory than the operands, and a slice has ``SHORTEST`` of K at least.
    """
    found, most = [], most_slices(desc)
    for variant in COSTS:
        count = tiles(desc, variant)
        if variant.BN == 128 and count >= MANY * units:
            variant = replace(variant, STAGES=6)
        wanted = {1, *[min(most, n * units // max(count, 1)) for n in (1, 2, 3)]}
        found += [replace(variant, k_parts=n) if n > 1 else variant for n in sorted({trimmed(desc.K, n) for n in wanted})]
    return found


def filling(desc: GemmDesc, variant: Fp32xConfig, units: int) -> int:
    """Return the slices of K with which there are no more tiles than SMs, as many as memory and ``SHORTEST`` allow."""
    return trimmed(desc.K, min(most_slices(desc), units // max(tiles(desc, variant), 1)))


def most_slices(desc: GemmDesc) -> int:
    """Return the most slices of K whose results take no more memory than the operands, each with ``SHORTEST`` of K."""
    return max(1, min(desc.K // SHORTEST, desc.K * desc.rows_read // max(desc.M * padded(desc.N) * desc.batch, 1)))


def product_time(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the seconds of the second launch beyond its start, and all of the third."""
    slices = config.k_parts
    odd = ODD * desc.M * desc.N * desc.batch / units if slices == 1 and desc.widths[2] == 1 else 0.0
    tile = 1e-9 * (BY_AREA[config.BM * config.BN] * depth_of(desc.K, slices) + TAIL * config.BM * config.BN)
    multiply = max(waves(desc, config, units) * tile, 4 * desc.rows_read * desc.K / cost_model.MEMORY_RATE)
    adding = FIRST_LAUNCH + 4 * (slices + 1) * desc.M * desc.N * desc.batch / REDUCE_RATE
    return multiply + odd + (adding if slices > 1 else 0.0)


def _sides(desc: GemmDesc) -> list[tuple[int, bool]]:
    """Return the rows of both operands that are split, and True where their K runs across memory."""
    a, b = desc.M * matrices(desc.stride_a, desc.batch), desc.N * matrices(desc.stride_b, desc.batch)
    return [(a, desc.trans_a), (b, not desc.trans_b)]


def split_time(desc: GemmDesc) -> float:
    """Return the seconds of the first launch beyond its start."""
    return sum(8 * rows * desc.K / (ACROSS_RATE if across else SPLIT_RATE) for rows, across in _sides(desc))


def short_time(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the seconds that a product with a short K takes beyond ``split_time`` and ``product_time``.

    They are apart because tile and slices are chosen without them: they grow with C, whatever its tiles.
    """
    rows = sum(rows for rows, across in _sides(desc) if not across)
    splitting = rows * max(LEAST_ROW - 8 * desc.K / SPLIT_RATE, 0.0)
    if config.k_parts > 1:
        return splitting
    tile = 1e-9 * SHORT_TAIL * config.BM * config.BN * max(1 - desc.K / SHORT, 0.0)
    return splitting + waves(desc, config, units) * tile


def strassen_seconds(desc: GemmDesc, units: int) -> float:
    """Return the predicted seconds of a level of Strassen: of its products, and by the bytes of the other launches."""
    total = 0.0
    for p in pieces(desc):
        m, n, k = half(p.rows), half(p.cols), half(p.depth)
        for rows, across in ((m, desc.trans_a), (n, not desc.trans_b)):
            total += 4 * rows * k * (QUARTERS + PRODUCTS) / (ACROSS_RATE if across else SPLIT_RATE)
        seven = GemmDesc(m, n, k, batch=PRODUCTS, stride_a=m * k, stride_b=k * n, stride_c=m * n)
        total += product_time(seven, Fp32xConfig(), units)
        total += 4 * m * n * (PRODUCTS + QUARTERS) / REDUCE_RATE + 4 * FIRST_LAUNCH
    return total


# in flight: a block works through its tiles one after the other, at a cost for each k-block of 32 and one for each tile.
# Fitted by ``benchmarks/fit_inflight.py`` on drawn shapes, and tested on others (``docs/lab-notes.md``)

TIMES: Mapping[tuple[int, int], tuple[float, float]] = {
    (2, 128): (1.03e-6, 2.92e-6), (2, 64): (0.712e-6, 1.82e-6), (2, 32): (0.589e-6, 0.974e-6), (1, 64): (0.84e-6, 1.69e-6),
    (1, 32): (0.674e-6, 1.06e-6),
}  # fmt: skip
"""Seconds of a k-block of 32 and of a tile, by consumers and BN, on an SM that has as many blocks as it can, operands aligned."""
SHARES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("float32", "float32"): (1.0, 0.0), ("float32", "bfloat16"): (0.87, -0.045), ("float32", "float16"): (0.74, -0.108),
    ("bfloat16", "float32"): (0.82, 0.003), ("bfloat16", "bfloat16"): (0.7, -0.076), ("bfloat16", "float16"): (0.6, -0.181),
    ("float16", "float32"): (0.73, 0.121), ("float16", "bfloat16"): (0.59, 0.045), ("float16", "float16"): (0.46, -0.05),
}  # fmt: skip
"""Share of those seconds of a k-block by the types of A and B, in tiles of 64 columns: two products in place of three, or one;
float16 needs no scales. Then the power of BN / 64 with which it grows: what a type saves, it saves in A, in B or in products."""
COPY = 8.16e-9
"""Seconds of a k-block for each copy that a thread of the copier makes beyond those of operands aligned to 16 bytes."""
AGAIN = 0.562
"""Share of a tile's own seconds that each tile after a block's first takes: it begins while the one before ends."""
ALONE = 0.605
"""Share of those seconds that a block takes which has an SM to itself, where others of its kind share one.

With all the constants of in flight but ``MEMORY_RATE`` and ``ODD_IN_FLIGHT`` fitted by ``benchmarks/fit_inflight.py`` to an H200's
``inflight.json``, ``deep-and-odd.json`` and checks of seeds 211 and 229, and an H100's ``inflight.json`` and checks of seeds 57,
61, 293, 271, 277 and 281 (the last three in the repository's history), each device counting as much."""
LAUNCH = 2.2e-6
"""Seconds of a launch."""
MET, MEET, PASS = 0.95e-6, 22.4e-9, 70.5e-12
"""Seconds in which the blocks of a cluster wait for each other, and more for each slice; and those of an SM for each sum that its
blocks get from others of their clusters."""
ADDING, PART = 1.84e-6, 0.148e-6
"""Seconds of the launch that adds results up, and of each part, beyond what their bytes take. Why a part takes that is not known:
adding 128 takes 2 µs more than adding two (``results/nvidia-h200/split-k.json``)."""
MEMORY_RATE = 4.6e12
"""Bytes a second of operands and results."""
LEAST_SLICE = 32
"""Least K of a slice."""
STAGES: Mapping[tuple[int, int], int] = {(2, 128): 4, (2, 64): 6, (2, 32): 8, (1, 64): 5, (1, 32): 8}
"""Stages of the ring: as many as fit into as many blocks as an SM has registers for."""
RINGS = tuple((*block, stages) for ring in (STAGES, LONG) for block, stages in ring.items())
"""Consumers, columns and stages of every block that is weighed."""
CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
"""Share of the SMs that clusters of so many blocks can have at once: they lie in one GPC, and not all have a multiple of four."""
GPC, LARGE = 8, 132
"""SMs of a GPC that a cluster may take up; and SMs of a GPU from which on it may take up more: others have fewer in some GPCs."""
ODD_IN_FLIGHT = 0.2e-9
"""Seconds of an SM for each result of C whose rows begin anywhere: blocks of 32 columns with all of K write it float by float."""


def at_once(config: Fp32xConfig, units: int) -> int:
    """Return how many blocks run at once."""
    return int(units * CLUSTERED[config.SLICES]) // config.SLICES * config.SLICES * config.resident


def in_flight_configs(desc: GemmDesc, units: int) -> list[Fp32xConfig]:
    """Return what is weighed: each block with all of K, and with slices while they leave SMs idle."""
    found = []
    for (consumers, cols), stages in STAGES.items():
        count = tiles(desc, in_flight(consumers, cols))
        for slices in CLUSTERS:
            config = in_flight(consumers, cols, stages, SLICES=slices)
            if (alone := with_long_ring(config)) and fits(alone, count, units):
                config = alone
            if slices == 1 or (fits(config, count, units) and desc.K >= LEAST_SLICE * slices):
                found.append(config)
    return found


def parts_configs(desc: GemmDesc, units: int) -> list[Fp32xConfig]:
    """Return what is weighed: each block, with parts of K that give the SMs as many blocks as they can have, or twice as many, and
    with a long ring parts that give each SM one.

    Their results take no more memory than the operands. There are none for batches, which have blocks enough.
    """
    found: list[Fp32xConfig] = []
    if desc.batch > 1:
        return found
    most = min(desc.K // SHORTEST, desc.K * (desc.M + desc.N) // (desc.M * padded(desc.N)))
    for ring in RINGS:
        whole = in_flight(*ring)
        turns = (1,) if whole.is_alone else (1, 2)
        counts = {min(n * whole.resident * units // tiles(desc, whole), most) for n in turns}
        parts = {trimmed(desc.K, count) for count in counts}
        found += [replace(whole, k_parts=count) for count in sorted(parts) if count > 1]
    return found


@functools.cache
def with_long_ring(config: Fp32xConfig) -> Fp32xConfig | None:
    """Return the block with a ring that leaves no room for a second one; None if an SM runs one anyway."""
    stages = LONG.get((config.CONSUMERS, config.BN))
    return replace(config, STAGES=stages) if stages else None


def fits(config: Fp32xConfig, count: int, units: int) -> bool:
    """Return True if the blocks of so many tiles run at once, each cluster in a GPC."""
    gpc = config.SLICES if units >= LARGE else GPC * config.resident
    return count * config.SLICES <= at_once(config, units) and config.SLICES <= gpc


def times(
    config: Fp32xConfig, align_a: int, align_b: int, type_a: str = "float32", type_b: str = "float32"
) -> tuple[float, float]:  # fmt: skip
    """Return the seconds of a k-block of 32 and of a tile, by the types of the operands and the words that they are aligned to."""
    chunk, tile = TIMES[config.CONSUMERS, config.BN]
    words_a, words_b = config.BM * ELEMENT_BYTES[type_a] / 4, config.BN * ELEMENT_BYTES[type_b] / 4
    copies = (words_a / align_a + words_b / align_b) / 4 - (words_a + words_b) / 16
    share, wider = SHARES[type_a, type_b]
    return chunk * share * (config.BN / 64) ** wider + COPY * copies, tile


def in_flight_seconds(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the predicted seconds of the launch, and with parts of K of the one that adds them up."""
    chunk, tile = times(config, *aligned(desc), desc.type_a, desc.type_b)
    shares = config.SLICES * config.k_parts
    turns = -(-tiles(desc, config) * shares // at_once(config, units))
    work = turns * (slice_depth(desc.K, CHUNK, shares) // CHUNK) * chunk + tile * (1 + AGAIN * (turns - 1))
    work *= ALONE if config.is_alone else 1.0
    if config.SLICES == config.k_parts == 1 and config.BN == 32 and desc.widths[2] == 1:
        work += ODD_IN_FLIGHT * desc.M * desc.N * desc.batch / units
    if config.SLICES > 1:
        passed = config.BM * config.BN * (1 - 1 / config.SLICES) * config.resident
        work += MET + MEET * config.SLICES + PASS * passed
    c_bytes = 4 * desc.M * desc.N * desc.batch
    moved = (desc.bytes_read + config.k_parts * c_bytes) / MEMORY_RATE
    product = LAUNCH + math.hypot(work, moved)  # neither hides the other altogether
    if config.k_parts == 1:
        return product
    return product + ADDING + PART * config.k_parts + (config.k_parts + 1) * c_bytes / REDUCE_RATE


def share(desc: GemmDesc, units: int) -> float:
    """Return the predicted seconds that a product adds to a group's launch: all SMs share its tiles, and its bytes."""
    align, found = aligned(desc), math.inf
    for (consumers, cols), stages in STAGES.items():
        config = in_flight(consumers, cols, stages)
        chunk, tile = times(config, *align)
        found = min(found, tiles(desc, config) * (ceil(desc.K, CHUNK) * chunk + tile) / (config.resident * units))
    return max(found, 4 * (desc.rows_read * desc.K + desc.M * desc.N * desc.batch) / MEMORY_RATE)


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
        chunk, tile = times(config, align_a, align_b)
        ends = np.cumsum(-(-self.M // config.BM) * -(-self.N // config.BN))
        turns = np.arange(0, ends[-1], config.resident * units)
        work = float((-(-self.K[np.searchsorted(ends, turns, "right")] // CHUNK) * chunk).sum())
        work += tile * (1 + AGAIN * (len(turns) - 1))
        work *= ALONE if config.is_alone else 1.0
        moved = 4 * float(((self.M + self.N) * self.K + self.M * self.N).sum()) / MEMORY_RATE
        return LAUNCH + math.hypot(work, moved)


def group_config(sizes: Sizes, align_a: int, align_b: int, units: int) -> Fp32xConfig:
    """Return the block that a group is predicted to take least time with."""
    return min((in_flight(*ring) for ring in RINGS), key=lambda config: sizes.seconds(config, align_a, align_b, units))


# B split beforehand, A in flight. Fitted to ``results/nvidia-h200/presplit-launch.json``, an H200, where it is within a tenth of
# three in four and within a quarter of all; ``benchmarks/candidates.py --shapes presplit`` measures them

PRESPLIT_TIMES: Mapping[tuple[int, int], tuple[float, float]] = {
    (128, 4): (0.76e-6, 8.6e-6), (128, 2): (0.575e-6, 8.0e-6), (64, 4): (0.60e-6, 5.0e-6), (64, 2): (0.455e-6, 5.3e-6),
}  # fmt: skip
"""Seconds of a k-block of 32 and of a tile, by BN and the bytes of an element of A, on an SM."""
PRESPLIT_STAGES: Mapping[tuple[int, int], int] = dict(zip(BLOCKS[ONE], (5, 7), strict=True))
"""Stages of the ring that fit, by consumers and columns."""
NARROWEST, WIDEST = 33, {4: 256, 2: 768}
"""Columns of C from which and up to which the family is weighed, the latter by the bytes of an element of A: with more of them A is
read so often that a pass over it pays. Outside these seconds were not fitted: large products draw more power, and take longer."""
FIRST = 0.7e-6
"""Seconds of a launch beyond those of its tiles."""
BEFORE = 9.5e-6
"""Seconds that a launch before the product adds, beyond what its bytes take."""
ROUND, SHORT_ROUND, ROUND_SHORT, ROUND_LONG = 7.0e-6, 4.2e-6, 2048, 8192
"""Seconds in which each warpgroup splits what it claims at a time: from the one K on and at K = 0. Beyond the other, the longest K
that they were fitted to, they grow with it, as checks show."""
LEAST_PRESPLIT_SLICE = 128
"""Least K of a slice."""
PIECES = 4
"""Rows that a warpgroup claims at a time up to that K, as ``claimed.cuh`` has it."""


def presplit_configs(desc: GemmDesc, units: int) -> list[Fp32xConfig]:
    """Return what is weighed: each block with all of K, and with slices while they leave SMs idle; nothing for other N.

    Nothing either where each product of a batch has a B of its own: in flight that takes as long by both models, and was measured
    there.
    """
    found: list[Fp32xConfig] = []
    if (desc.batch > 1 and desc.stride_b) or not NARROWEST <= desc.N <= WIDEST[ELEMENT_BYTES[desc.type_a]]:
        return found
    for (consumers, cols), stages in PRESPLIT_STAGES.items():
        for slices in CLUSTERS[:4]:
            config = presplit(consumers, cols, stages, SLICES=slices)
            room = tiles(desc, config) * slices <= at_once(config, units) and desc.K >= LEAST_PRESPLIT_SLICE * slices
            if slices == 1 or room:
                found.append(config)
    return found


def split_seconds(desc: GemmDesc, config: Fp32xConfig, units: int) -> tuple[float, float]:
    """Return the seconds in which B is split: by the product's launch, infinite where K runs across memory, and by one before."""
    rows = desc.N * matrices(desc.stride_b, desc.batch)
    before = BEFORE + 8 * rows * desc.K / (SPLIT_RATE if desc.trans_b else ACROSS_RATE)
    if not desc.trans_b:
        return float("inf"), before
    blocks = min(tiles(desc, config) * config.SLICES, at_once(config, units))
    rounds = ceil(ceil(rows, PIECES) if desc.K <= ROUND_SHORT else rows, blocks * (config.CONSUMERS + 1))
    each = SHORT_ROUND + (ROUND - SHORT_ROUND) * min(desc.K / ROUND_SHORT, 1.0)
    return rounds * each * max(desc.K / ROUND_LONG, 1.0), before


def presplit_seconds(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the predicted seconds of a product whose B is split."""
    size = ELEMENT_BYTES[desc.type_a]
    chunk, tile = PRESPLIT_TIMES[config.BN, size]
    words = config.BM * size / 4
    chunk += COPY * (words / aligned(desc)[0] / 4 - words / 16)
    turns = ceil(tiles(desc, config) * config.SLICES, at_once(config, units))
    work = turns * (ceil(ceil(desc.K, CHUNK), config.SLICES) * chunk + tile)
    moved = (desc.bytes_read + 4 * desc.M * desc.N * desc.batch) / MEMORY_RATE
    return FIRST + max(work, moved)


def seconds(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the predicted seconds of all launches."""
    if config.split == BOTH:
        return 2 * FIRST_LAUNCH + split_time(desc) + product_time(desc, config, units) + short_time(desc, config, units)
    if config.split == ONE:
        return presplit_seconds(desc, config, units) + min(split_seconds(desc, config, units))
    return in_flight_seconds(desc, config, units)


def launch_count(desc: GemmDesc, config: Fp32xConfig, units: int) -> int:
    """Return the launches of a product split in flight, a pass over B and the sum of parts included."""
    if config.split == ONE:
        inside, before = split_seconds(desc, config, units)
        return 1 if inside <= before else 2
    return 1 + (config.k_parts > 1)
