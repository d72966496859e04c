"""Cost model: predicted seconds, and the blocks that are weighed.

A block works through its tiles one after the other: so long for each 32 of K, and so long for a tile besides. Fitted by
``benchmarks/fit_inflight.py`` on drawn shapes, and tested on others (``docs/lab-notes.md``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_inflight.config import CHUNK, CLUSTERS, InflightConfig, aligned, tiles

TIMES: Mapping[tuple[int, int], tuple[float, float]] = {
    (2, 128): (0.997e-6, 2.56e-6), (2, 64): (0.695e-6, 1.4e-6), (2, 32): (0.588e-6, 0.545e-6), (1, 64): (0.83e-6, 1.19e-6),
    (1, 32): (0.67e-6, 0.548e-6),
}  # fmt: skip
"""Seconds of 32 of K and of a tile, by consumers and BN, on an SM that has as many blocks as it can, operands aligned."""
HALVES = {(4, 4): 1.0, (2, 4): 0.86, (4, 2): 0.87, (2, 2): 0.7}
"""Share of those seconds of 32 of K where elements of A and of B have so many bytes: two products in place of three, or one.
Medians of ``benchmarks/mixed.py`` over blocks that take 30 µs or more (0.81 to 0.93), and of two bfloat16 of
``benchmarks/cublas_half.py`` from 4096 x 4096 x 1024 on (0.65 to 0.77)."""
UNSCALED = 0.45
"""The share where both are float16, which nothing is scaled of: 0.40 to 0.53 by the same."""
COPY = 9.4e-9
"""Seconds of 32 of K for each copy that a thread of the copier makes beyond those of operands aligned to 16 bytes."""
ALONE = 0.577
"""Share of those seconds that a block takes which has an SM to itself, where two could share it."""
SPREAD, PACKED = 0.16, 1.13
"""Blocks for each SM up to which each has one to itself, and from which on some share one, for whom the launch waits: the blocks of
a cluster lie in one GPC, and blocks of the launch before may still be there.

With ``TIMES``, ``ALONE``, ``COPY``, ``LAUNCH``, ``MET`` and ``MEET`` fitted to both of an H200's ``inflight.json``,
``deep-and-odd.json`` and check of seed 31, and an H100's checks of seeds 57, 61, 73, 97 and 131, each device counting as much, and
tested on checks of other seeds."""
LAUNCH = 2.73e-6
"""Seconds of a launch."""
MET, MEET = 1.12e-6, 45e-9
"""Seconds in which the blocks of a cluster wait for each other, and for each slice in which they add up their sums."""
MEMORY_RATE = 4.6e12
"""Bytes a second of operands and results."""
SHORTEST = 32
"""Least K of a slice."""
STAGES: Mapping[tuple[int, int], int] = {(2, 128): 4, (2, 64): 6, (2, 32): 8, (1, 64): 5, (1, 32): 8}
"""Stages of the ring: as many as fit."""
CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
"""Share of the SMs that clusters of so many blocks can have at once: they lie in one GPC, and not all have a multiple of four."""
GPC = 8
"""SMs of a GPC that a cluster may take up: not every GPU has more in each."""
ODD = 0.2e-9
"""Seconds of an SM for each result of C whose rows begin anywhere: blocks of 32 columns with all of K write it float by float."""


def at_once(config: InflightConfig, units: int) -> int:
    """Return how many blocks run at once."""
    return int(units * CLUSTERED[config.SLICES]) // config.SLICES * config.SLICES * config.resident


def configs(desc: GemmDesc, units: int) -> list[InflightConfig]:
    """Return what is weighed: each block with all of K, and with slices while they leave SMs idle."""
    found = []
    for (consumers, cols), stages in STAGES.items():
        whole = InflightConfig(consumers, cols, stages)
        count = tiles(desc, whole)
        for slices in CLUSTERS:
            config = InflightConfig(consumers, cols, stages, SLICES=slices)
            fits = count * slices <= at_once(config, units) and slices <= GPC * config.resident
            if slices == 1 or (fits and desc.K >= SHORTEST * slices):
                found.append(config)
    return found


def times(
    config: InflightConfig, align_a: int, align_b: int, size_a: int = 4, size_b: int = 4, unscaled: bool = False
) -> tuple[float, float]:  # fmt: skip
    """Return the seconds of 32 of K and of a tile, with operands aligned to so many words, whose elements have so many bytes.

    ``unscaled``: both are of float16.
    """
    chunk, tile = TIMES[config.CONSUMERS, config.BN]
    words_a, words_b = config.BM * size_a / 4, config.BN * size_b / 4
    copies = (words_a / align_a + words_b / align_b) / 4 - (words_a + words_b) / 16
    return chunk * (UNSCALED if unscaled else HALVES[size_a, size_b]) + COPY * copies, tile


def crowding(config: InflightConfig, blocks: int, units: int) -> float:
    """Return the share of ``TIMES`` that each of so many blocks takes: less than 1 where those that an SM has room for are few."""
    if config.resident == 1 or blocks > units:
        return 1.0
    packed = (blocks / units - SPREAD) / (PACKED - SPREAD)
    return ALONE + (1 - ALONE) * min(1.0, max(0.0, packed))


def seconds(desc: GemmDesc, config: InflightConfig, units: int) -> float:
    """Return the predicted seconds of the launch."""
    unscaled = desc.type_a == desc.type_b == "float16"
    chunk, tile = times(config, *aligned(desc), ELEMENT_BYTES[desc.type_a], ELEMENT_BYTES[desc.type_b], unscaled)
    blocks = tiles(desc, config) * config.SLICES
    each = ceil(ceil(desc.K, CHUNK), config.SLICES) * chunk + tile
    work = ceil(blocks, at_once(config, units)) * each * crowding(config, blocks, units)
    if config.SLICES == 1 and config.BN == 32 and desc.widths[2] == 1:
        work += ODD * desc.M * desc.N * desc.batch / units
    if config.SLICES > 1:
        work += MET + MEET * config.SLICES
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
        work = float((-(-self.K[np.searchsorted(ends, turns, "right")] // CHUNK) * chunk + tile).sum())
        work *= crowding(config, int(ends[-1]), units)
        moved = 4 * float(((self.M + self.N) * self.K + self.M * self.N).sum()) / MEMORY_RATE
        return LAUNCH + math.hypot(work, moved)


def group_config(sizes: Sizes, align_a: int, align_b: int, units: int) -> InflightConfig:
    """Return the block that a group is predicted to take least time with."""
    blocks = [InflightConfig(consumers, cols, stages) for (consumers, cols), stages in STAGES.items()]
    return min(blocks, key=lambda config: sizes.seconds(config, align_a, align_b, units))
