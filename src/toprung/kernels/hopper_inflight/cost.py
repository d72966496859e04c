"""Cost model: predicted seconds, and the block with which a product is done first."""

from __future__ import annotations

from collections.abc import Mapping

from toprung.gemm.desc import GemmDesc
from toprung.kernels.cost_model import MEMORY_RATE
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_inflight.config import CHUNK, CLUSTERS, InflightConfig, tiles

CLOCK = 1.75e9
"""Cycles a second that the predictions below take for an H200 at work."""
SLOTS: Mapping[tuple[int, int], tuple[int, int]] = {
    (2, 128): (344, 330), (2, 64): (246, 220), (2, 32): (198, 160), (1, 64): (246, 190), (1, 32): (198, 130),
}  # fmt: skip
"""Instructions of a warp for 32 of K, by consumers and BN: a consumer's, and the producer's. Counted in the machine code."""
ISSUED = 0.8
"""Share of a scheduler's cycles in which it issues one of them. A guess: nothing here has been measured yet."""
MULTIPLY = 3
"""Cycles of 64 x 1 x 32 on the matrix units, three products."""
LAUNCH, START, TAIL = 2.5e-6, 1.5e-6, 0.06e-9
"""Seconds of a launch; of a tile's first loads, where nothing hides them; of each element of a tile's C, once."""
SHORTEST = 128
"""Least K of a slice."""
STAGES: Mapping[tuple[int, int], int] = {(2, 128): 4, (2, 64): 6, (2, 32): 8, (1, 64): 5, (1, 32): 8}
"""Stages of the ring: as many as fit."""


CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91}
"""Share of the SMs that clusters of so many blocks can have at once: they lie in one GPC, and not all have a multiple of four."""


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
            if slices == 1 or (count * slices <= at_once(config, units) and desc.K >= SHORTEST * slices):
                found.append(config)
    return found


def cycles(config: InflightConfig) -> float:
    """Return the cycles of 32 of K on an SM that runs as many blocks as it can, for each of them."""
    consumer, producer = SLOTS[config.CONSUMERS, config.BN]
    return max((config.CONSUMERS * consumer + producer) / ISSUED, MULTIPLY * config.CONSUMERS * config.BN)


def seconds(desc: GemmDesc, config: InflightConfig, units: int) -> float:
    """Return the predicted seconds of the launch."""
    chunks = ceil(ceil(desc.K, CHUNK), config.SLICES)
    waves = ceil(tiles(desc, config) * config.SLICES, units)
    tile = chunks * cycles(config) / CLOCK + TAIL * config.BM * config.BN
    moved = 4 * (desc.rows_read * desc.K + desc.M * desc.N * desc.batch)
    return LAUNCH + max(START + waves * tile, moved / MEMORY_RATE)
