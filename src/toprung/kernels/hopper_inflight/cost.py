"""Cost model: predicted seconds, and the blocks that are weighed.

A block works through its tiles one after the other: so long for each 32 of K, and so long for a tile besides. Fitted by
``benchmarks/fit_inflight.py`` on drawn shapes, and tested on others (``docs/lab-notes.md``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_inflight.config import CHUNK, CLUSTERS, LONG, InflightConfig, aligned, tiles

TIMES: Mapping[tuple[int, int], tuple[float, float]] = {
    (2, 128): (1.03e-6, 2.92e-6), (2, 64): (0.712e-6, 1.82e-6), (2, 32): (0.589e-6, 0.974e-6), (1, 64): (0.84e-6, 1.69e-6),
    (1, 32): (0.674e-6, 1.06e-6),
}  # fmt: skip
"""Seconds of 32 of K and of a tile, by consumers and BN, on an SM that has as many blocks as it can, operands aligned."""
SHARES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("float32", "float32"): (1.0, 0.0), ("float32", "bfloat16"): (0.87, -0.045), ("float32", "float16"): (0.74, -0.108),
    ("bfloat16", "float32"): (0.82, 0.003), ("bfloat16", "bfloat16"): (0.7, -0.076), ("bfloat16", "float16"): (0.6, -0.181),
    ("float16", "float32"): (0.73, 0.121), ("float16", "bfloat16"): (0.59, 0.045), ("float16", "float16"): (0.46, -0.05),
}  # fmt: skip
"""Share of those seconds of 32 of K by the types of A and B, in tiles of 64 columns: two products in place of three, or one;
float16 needs no scales. Then the power of BN / 64 with which it grows: what a type saves, it saves in A, in B or in products."""
COPY = 8.16e-9
"""Seconds of 32 of K for each copy that a thread of the copier makes beyond those of operands aligned to 16 bytes."""
AGAIN = 0.562
"""Share of a tile's own seconds that each tile after a block's first takes: it begins while the one before ends."""
ALONE = 0.605
"""Share of those seconds that a block takes which has an SM to itself, where others of its kind share one.

With all the constants here but ``MEMORY_RATE`` and ``ODD`` fitted by ``benchmarks/fit_inflight.py`` to an H200's ``inflight.json``,
``deep-and-odd.json`` and checks of seeds 211 and 229, and an H100's ``inflight.json`` and checks of seeds 57, 61, 293, 271, 277
and 281 (the last three in the repository's history), each device counting as much."""
LAUNCH = 2.2e-6
"""Seconds of a launch."""
MET, MEET, PASS = 0.95e-6, 22.4e-9, 70.5e-12
"""Seconds in which the blocks of a cluster wait for each other, and more for each slice; and those of an SM for each sum that its
blocks get from others of their clusters."""
MEMORY_RATE = 4.6e12
"""Bytes a second of operands and results."""
SHORTEST = 32
"""Least K of a slice."""
STAGES: Mapping[tuple[int, int], int] = {(2, 128): 4, (2, 64): 6, (2, 32): 8, (1, 64): 5, (1, 32): 8}
"""Stages of the ring: as many as fit into as many blocks as an SM has registers for."""
RINGS = tuple((*block, stages) for ring in (STAGES, LONG) for block, stages in ring.items())
"""Consumers, columns and stages of every block that is weighed."""
CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
"""Share of the SMs that clusters of so many blocks can have at once: they lie in one GPC, and not all have a multiple of four."""
GPC, LARGE = 8, 132
"""SMs of a GPC that a cluster may take up; and SMs of a GPU from which on it may take up more: others have fewer in some GPCs."""
ODD = 0.2e-9
"""Seconds of an SM for each result of C whose rows begin anywhere: blocks of 32 columns with all of K write it float by float."""


def at_once(config: InflightConfig, units: int) -> int:
    """Return how many blocks run at once."""
    return int(units * CLUSTERED[config.SLICES]) // config.SLICES * config.SLICES * config.resident


def configs(desc: GemmDesc, units: int) -> list[InflightConfig]:
    """Return what is weighed: each block with all of K, and with slices while they leave SMs idle."""
    found = []
    for (consumers, cols), stages in STAGES.items():
        count = tiles(desc, InflightConfig(consumers, cols))
        for slices in CLUSTERS:
            config = InflightConfig(consumers, cols, stages, SLICES=slices)
            if (alone := with_long_ring(config)) and fits(alone, count, units):
                config = alone
            if slices == 1 or (fits(config, count, units) and desc.K >= SHORTEST * slices):
                found.append(config)
    return found


def with_long_ring(config: InflightConfig) -> InflightConfig | None:
    """Return the block with a ring that leaves no room for a second one; None if an SM runs one anyway."""
    stages = LONG.get((config.CONSUMERS, config.BN))
    return replace(config, STAGES=stages) if stages else None


def fits(config: InflightConfig, count: int, units: int) -> bool:
    """Return True if the blocks of so many tiles run at once, each cluster in a GPC."""
    gpc = config.SLICES if units >= LARGE else GPC * config.resident
    return count * config.SLICES <= at_once(config, units) and config.SLICES <= gpc


def times(
    config: InflightConfig, align_a: int, align_b: int, type_a: str = "float32", type_b: str = "float32"
) -> tuple[float, float]:  # fmt: skip
    """Return the seconds of 32 of K and of a tile, with operands of such types, aligned to so many words."""
    chunk, tile = TIMES[config.CONSUMERS, config.BN]
    words_a, words_b = config.BM * ELEMENT_BYTES[type_a] / 4, config.BN * ELEMENT_BYTES[type_b] / 4
    copies = (words_a / align_a + words_b / align_b) / 4 - (words_a + words_b) / 16
    share, wider = SHARES[type_a, type_b]
    return chunk * share * (config.BN / 64) ** wider + COPY * copies, tile


def seconds(desc: GemmDesc, config: InflightConfig, units: int) -> float:
    """Return the predicted seconds of the launch."""
    chunk, tile = times(config, *aligned(desc), desc.type_a, desc.type_b)
    blocks = tiles(desc, config) * config.SLICES
    turns = ceil(blocks, at_once(config, units))
    work = turns * ceil(ceil(desc.K, CHUNK), config.SLICES) * chunk + tile * (1 + AGAIN * (turns - 1))
    work *= ALONE if config.is_alone else 1.0
    if config.SLICES == 1 and config.BN == 32 and desc.widths[2] == 1:
        work += ODD * desc.M * desc.N * desc.batch / units
    if config.SLICES > 1:
        passed = config.BM * config.BN * (1 - 1 / config.SLICES) * config.resident
        work += MET + MEET * config.SLICES + PASS * passed
    moved = (desc.bytes_read + 4 * desc.M * desc.N * desc.batch) / MEMORY_RATE
    return LAUNCH + math.hypot(work, moved)  # neither hides the other altogether


def share(desc: GemmDesc, units: int) -> float:
    """Return the predicted seconds that a product adds to a group's launch: all SMs share its tiles, and its bytes."""
    align, found = aligned(desc), math.inf
    for (consumers, cols), stages in STAGES.items():
        config = InflightConfig(consumers, cols, stages)
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

    def seconds(self, config: InflightConfig, align_a: int, align_b: int, units: int) -> float:
        """Return the predicted seconds of a launch: those of its first block, which has the longest tile in each turn."""
        chunk, tile = times(config, align_a, align_b)
        ends = np.cumsum(-(-self.M // config.BM) * -(-self.N // config.BN))
        turns = np.arange(0, ends[-1], config.resident * units)
        work = float((-(-self.K[np.searchsorted(ends, turns, "right")] // CHUNK) * chunk).sum())
        work += tile * (1 + AGAIN * (len(turns) - 1))
        work *= ALONE if config.is_alone else 1.0
        moved = 4 * float(((self.M + self.N) * self.K + self.M * self.N).sum()) / MEMORY_RATE
        return LAUNCH + math.hypot(work, moved)


def group_config(sizes: Sizes, align_a: int, align_b: int, units: int) -> InflightConfig:
    """Return the block that a group is predicted to take least time with."""
    return min((InflightConfig(*ring) for ring in RINGS), key=lambda config: sizes.seconds(config, align_a, align_b, units))
