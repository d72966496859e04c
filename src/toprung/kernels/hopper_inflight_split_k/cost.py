"""Cost model: predicted seconds of the product's launch and of the one that adds results up, and the parts that are weighed."""

from __future__ import annotations

import math

from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.cost import REDUCE_RATE
from toprung.kernels.hopper_fp32x.sizes import padded
from toprung.kernels.hopper_inflight.config import CHUNK, InflightConfig, aligned, tiles
from toprung.kernels.hopper_inflight.cost import AGAIN, ALONE, LAUNCH, MEMORY_RATE, RINGS, times
from toprung.kernels.hopper_inflight_split_k.config import PartsConfig
from toprung.kernels.split_k import whole_slices

SHORTEST = 256
"""Least K of a part: below, a tile's beginning and end are most of its time."""
ADDING, PART = 1.84e-6, 0.148e-6
"""Seconds of the launch that adds results up, and of each part, beyond what their bytes take.

Fitted with in flight's own by ``benchmarks/fit_inflight.py``. Why a part takes that is not known: adding 128 takes 2 µs more than
adding two (``results/nvidia-h200/split-k.json``)."""


def configs(desc: GemmDesc, units: int) -> list[PartsConfig]:
    """Return what is weighed: each block, with parts of K that give the SMs as many blocks as they can have, or twice as many, and
    with a long ring parts that give each SM one.

    Their results take no more memory than the operands. There are none for batches, which have blocks enough.
    """
    found: list[PartsConfig] = []
    if desc.batch > 1:
        return found
    most = min(desc.K // SHORTEST, desc.K * (desc.M + desc.N) // (desc.M * padded(desc.N)))
    for ring in RINGS:
        whole = InflightConfig(*ring)
        turns = (1,) if whole.is_alone else (1, 2)
        counts = {min(n * whole.resident * units // tiles(desc, whole), most) for n in turns}
        parts = {whole_slices(desc.K, CHUNK, count) for count in counts if count > 1}
        found += [PartsConfig(*ring, PARTS=count) for count in sorted(parts) if count > 1]
    return found


def seconds(desc: GemmDesc, config: PartsConfig, units: int) -> float:
    """Return the predicted seconds of both launches."""
    chunk, tile = times(config, *aligned(desc))
    blocks = tiles(desc, config) * config.PARTS
    turns = ceil(blocks, config.resident * units)
    work = turns * (config.depth(desc.K) // CHUNK) * chunk + tile * (1 + AGAIN * (turns - 1))
    work *= ALONE if config.is_alone else 1.0
    results = 4 * config.PARTS * desc.M * desc.N
    moved = (desc.bytes_read + results) / MEMORY_RATE
    return LAUNCH + math.hypot(work, moved) + ADDING + PART * config.PARTS + (results + 4 * desc.M * desc.N) / REDUCE_RATE
