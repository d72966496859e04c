"""Cost model of fp32x: predicted seconds, and the tile and K slices with which a product is done first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from toprung.gemm.desc import GemmDesc
from toprung.kernels.cost_model import MEMORY_RATE
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.sizes import depth_of, matrices, padded, trimmed

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
LAUNCH = 4e-6
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
SHORTEST = 256
"""Least K of a slice: below, a tile's beginning and end are most of its time."""


def waves(desc: GemmDesc, config: Fp32xConfig, units: int) -> int:
    """Return the tiles of the fullest SM."""
    return ceil(_tiles(desc, config) * config.slices, units)


def select_config(desc: GemmDesc, units: int) -> Fp32xConfig:
    """Return the tile and slices with which all is done first; the larger tile and the fewer slices where that is equal."""
    return min(configs(desc, units), key=lambda config: product_time(desc, config, units))


def configs(desc: GemmDesc, units: int) -> list[Fp32xConfig]:
    """Return what is weighed: each tile with all of K, and with slices that fill the device once, twice or three times.

    Their results take no more memory than the operands, and a slice has ``SHORTEST`` of K at least.
    """
    found = []
    for variant in COSTS:
        if variant.BN == 128 and _tiles(desc, variant) >= MANY * units:
            variant = replace(variant, STAGES=6)
        counts = {filling(desc, variant, n * units) for n in (1, 2, 3)} | {1}
        found += [replace(variant, slices=slices) for slices in sorted(counts)]
    return found


def filling(desc: GemmDesc, variant: Fp32xConfig, units: int) -> int:
    """Return the slices of K with which there are no more tiles than SMs, as many as memory and ``SHORTEST`` allow."""
    return trimmed(desc.K, min(most_slices(desc), units // max(_tiles(desc, variant), 1)))


def most_slices(desc: GemmDesc) -> int:
    """Return the most slices of K whose results take no more memory than the operands, each with ``SHORTEST`` of K."""
    return max(1, min(desc.K // SHORTEST, desc.K * desc.rows_read // max(desc.M * padded(desc.N) * desc.batch, 1)))


def product_time(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the seconds of the second launch beyond its start, and all of the third."""
    slices = config.slices
    odd = ODD * desc.M * desc.N * desc.batch / units if slices == 1 and desc.widths[2] == 1 else 0.0
    tile = 1e-9 * (BY_AREA[config.BM * config.BN] * depth_of(desc.K, slices) + TAIL * config.BM * config.BN)
    multiply = max(waves(desc, config, units) * tile, 4 * desc.rows_read * desc.K / MEMORY_RATE)
    return multiply + odd + (LAUNCH + 4 * (slices + 1) * desc.M * desc.N * desc.batch / REDUCE_RATE if slices > 1 else 0.0)


def split_time(desc: GemmDesc) -> float:
    """Return the seconds of the first launch beyond its start."""
    sides = (desc.M, desc.stride_a, desc.trans_a), (desc.N, desc.stride_b, not desc.trans_b)
    return sum(
        8 * rows * matrices(stride, desc.batch) * desc.K / (ACROSS_RATE if across else SPLIT_RATE) for rows, stride, across in sides
    )


def short_time(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the seconds that a product with a short K takes beyond ``split_time`` and ``product_time``.

    They are apart because tile and slices are chosen without them: they grow with C, whatever its tiles.
    """
    sides = ((desc.M, desc.stride_a, desc.trans_a), (desc.N, desc.stride_b, not desc.trans_b))
    rows = sum(rows * matrices(stride, desc.batch) for rows, stride, across in sides if not across)
    splitting = rows * max(LEAST_ROW - 8 * desc.K / SPLIT_RATE, 0.0)
    if config.slices > 1:
        return splitting
    tile = 1e-9 * SHORT_TAIL * config.BM * config.BN * max(1 - desc.K / SHORT, 0.0)
    return splitting + waves(desc, config, units) * tile


def seconds(desc: GemmDesc, config: Fp32xConfig, units: int) -> float:
    """Return the predicted seconds of all launches."""
    return 2 * LAUNCH + split_time(desc) + product_time(desc, config, units) + short_time(desc, config, units)


def _tiles(desc: GemmDesc, config: Fp32xConfig) -> int:
    return ceil(desc.M, config.BM) * ceil(desc.N, config.BN) * desc.batch
