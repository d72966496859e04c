"""Cost model: predicted seconds of the product, and of B's splitting in its launch or before it.

Fitted to ``results/nvidia-h200/presplit-launch.json``, an H200, where it is within a tenth of three in four and within a quarter
of all; ``benchmarks/candidates.py --shapes presplit`` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping

from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.cost import ACROSS_RATE, SPLIT_RATE
from toprung.kernels.hopper_fp32x.sizes import matrices
from toprung.kernels.hopper_inflight.config import CHUNK, CLUSTERS, tiles
from toprung.kernels.hopper_inflight.cost import COPY, MEMORY_RATE, at_once
from toprung.kernels.hopper_presplit.config import BLOCKS, PresplitConfig, aligned_a

TIMES: Mapping[tuple[int, int], tuple[float, float]] = {
    (128, 4): (0.76e-6, 8.6e-6), (128, 2): (0.575e-6, 8.0e-6), (64, 4): (0.60e-6, 5.0e-6), (64, 2): (0.455e-6, 5.3e-6),
}  # fmt: skip
"""Seconds of 32 of K and of a tile, by BN and the bytes of an element of A, on an SM."""
NARROWEST, WIDEST = 33, {4: 256, 2: 768}
"""Columns of C from which and up to which the family is weighed, the latter by the bytes of an element of A: with more of them A is
read so often that a pass over it pays. Outside these seconds were not fitted: large products draw more power, and take longer."""
FIRST = 0.7e-6
"""Seconds of a launch beyond those of its tiles."""
PASS = 9.5e-6
"""Seconds that a launch before the product adds, beyond what its bytes take."""
ROUND, SHORT_ROUND, SHORT, LONG = 7.0e-6, 4.2e-6, 2048, 8192
"""Seconds in which each warpgroup splits what it claims at a time: from the one K on and at K = 0. Beyond the other, the longest K
that they were fitted to, they grow with it, as checks show."""
SHORTEST = 128
"""Least K of a slice."""
PIECES = 4
"""Rows that a warpgroup claims at a time up to that K, as ``claimed.cuh`` has it."""


def configs(desc: GemmDesc, units: int) -> list[PresplitConfig]:
    """Return what is weighed: each block with all of K, and with slices while they leave SMs idle; nothing for other N."""
    found: list[PresplitConfig] = []
    if not NARROWEST <= desc.N <= WIDEST[ELEMENT_BYTES[desc.type_a]]:
        return found
    for (consumers, cols), stages in BLOCKS.items():
        for slices in CLUSTERS[:4]:
            config = PresplitConfig(consumers, cols, stages, SLICES=slices)
            fits = tiles(desc, config) * slices <= at_once(config, units) and desc.K >= SHORTEST * slices
            if slices == 1 or fits:
                found.append(config)
    return found


def split_seconds(desc: GemmDesc, config: PresplitConfig, units: int) -> tuple[float, float]:
    """Return the seconds in which B is split: by the product's launch, infinite where K runs across memory, and by one before."""
    rows = desc.N * matrices(desc.stride_b, desc.batch)
    before = PASS + 8 * rows * desc.K / (SPLIT_RATE if desc.trans_b else ACROSS_RATE)
    if not desc.trans_b:
        return float("inf"), before
    blocks = min(tiles(desc, config) * config.SLICES, at_once(config, units))
    rounds = ceil(ceil(rows, PIECES) if desc.K <= SHORT else rows, blocks * (config.CONSUMERS + 1))
    each = SHORT_ROUND + (ROUND - SHORT_ROUND) * min(desc.K / SHORT, 1.0)
    return rounds * each * max(desc.K / LONG, 1.0), before


def product_seconds(desc: GemmDesc, config: PresplitConfig, units: int) -> float:
    """Return the predicted seconds of a product whose B is split."""
    size = ELEMENT_BYTES[desc.type_a]
    chunk, tile = TIMES[config.BN, size]
    words = config.BM * size / 4
    chunk += COPY * (words / aligned_a(desc) / 4 - words / 16)
    turns = ceil(tiles(desc, config) * config.SLICES, at_once(config, units))
    work = turns * (ceil(ceil(desc.K, CHUNK), config.SLICES) * chunk + tile)
    moved = (desc.bytes_read + 4 * desc.M * desc.N * desc.batch) / MEMORY_RATE
    return FIRST + max(work, moved)


def seconds(desc: GemmDesc, config: PresplitConfig, units: int) -> float:
    """Return the predicted seconds of all launches."""
    return product_seconds(desc, config, units) + min(split_seconds(desc, config, units))
