"""How long a call takes by reckoning: the tile and the slices of K that are done first, and whether plain fp32 is faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from toprung.hopper.call import TWICE, Call, Variant
from toprung.hopper.sizes import _ldp, _matrices, _rows, ceil, depth_of, trimmed

COSTS: Mapping[Variant, float] = {
    Variant(): 20.0,
    Variant(BN=64, STAGES=8): 11.2,
    Variant(CONSUMERS=1, BN=64, STAGES=8, GROUP=16): 6.8,
    Variant(CONSUMERS=1, BN=32, STAGES=8, GROUP=16): 4.5,
}
BY_AREA: Mapping[int, float] = {v.BM * v.BN: cost for v, cost in COSTS.items()}
"""``COSTS``: tiles that are weighed, each with the nanoseconds that an element of K takes where every multiprocessor has one.

Here and below, where nothing else is said: fitted to bursts of 512 to 4096 cubed on an H200 (``benchmarks/hopper.py``),
which they meet within a tenth. ``BY_AREA``: the same by a tile's elements, for those that only a tuner tries."""
TAIL = 0.15
"""Nanoseconds for each element of a tile's C, once."""
LAUNCH = 4e-6
"""Seconds of a launch that does nothing."""
SPLIT_RATE, ACROSS_RATE = 3.6e12, 2.6e12
"""Bytes a second of the splitting pass, what it reads and what it writes: of rows that lie along K, and of those that lie across.

Fitted to the launch alone on an H200 (``results/nvidia-h200/split-k.json``), in the slices chosen there and 65536 x 64 x 4096;
64 x 65536 x 4096 of ``fp32x-sustained.json``, nearly all across, takes longer than that by what they say."""
PLAIN_RATE, PLAIN_START = 51e12, 1e-5
"""Operations a second of the best plain fp32, and the seconds it takes beyond them."""
MEMORY_RATE = 4e12
"""Bytes a second of memory."""
MARGIN = 1.2
"""How much faster it must be by this reckoning to be called so."""
REDUCE_RATE = 4.3e12
"""Bytes a second at which the results of slices are read and added: fitted to ``split-k.json``, where there are 50 MB and more."""
SHORTEST = 256
"""Of K in a slice: below, a tile's beginning and end are most of its time."""


class Way(NamedTuple):
    """A tile, and slices of K of a depth that is a multiple of 32 (all of K where it is one slice)."""

    variant: Variant
    slices: int = 1


def waves(call: Call, variant: Variant, units: int, slices: int = 1) -> int:
    """Tiles of the fullest multiprocessor."""
    return ceil(_tiles(call, variant) * slices, units)


def choose(call: Call, units: int) -> Way:
    """The tile and slices with which all is done first; the larger tile and the fewer slices where that is equal."""
    best = min(ways(call, units), key=lambda way: product_time(call, way, units))
    tile = best.variant
    return Way(replace(tile, INTERVAL=2), best.slices) if call.K >= TWICE and (tile.CONSUMERS, tile.BN) == (2, 64) else best


def ways(call: Call, units: int) -> list[Way]:
    """What is weighed: each tile with all of K, and with slices that fill the device once, twice or three times.

    Their results take no more memory than the operands, and a slice has ``SHORTEST`` of K at least.
    """
    found = []
    for variant in COSTS:
        counts = {filling(call, variant, n * units) for n in (1, 2, 3)} | {1}
        found += [Way(variant, slices) for slices in sorted(counts)]
    return found


def filling(call: Call, variant: Variant, units: int) -> int:
    """Slices of K with which there are no more tiles than multiprocessors, as many as memory and ``SHORTEST`` allow."""
    return trimmed(call.K, min(most_slices(call), units // max(_tiles(call, variant), 1)))


def most_slices(call: Call) -> int:
    """Slices of K whose results take no more memory than the operands, each with ``SHORTEST`` of K."""
    return max(1, min(call.K // SHORTEST, call.K * _rows(call) // max(call.M * _ldp(call.N) * call.batch, 1)))


def product_time(call: Call, way: Way, units: int) -> float:
    """Seconds of the second launch beyond its start, and all of the third."""
    variant, slices = way
    tile = 1e-9 * (BY_AREA[variant.BM * variant.BN] * depth_of(call.K, slices) + TAIL * variant.BM * variant.BN)
    multiply = max(waves(call, variant, units, slices) * tile, 4 * _rows(call) * call.K / MEMORY_RATE)
    return multiply + (LAUNCH + 4 * (slices + 1) * call.M * call.N * call.batch / REDUCE_RATE if slices > 1 else 0.0)


def split_time(call: Call) -> float:
    """Seconds of the first launch beyond its start."""
    sides = (call.M, call.stride_a, call.trans_a), (call.N, call.stride_b, not call.trans_b)
    return sum(
        8 * rows * _matrices(stride, call.batch) * call.K / (ACROSS_RATE if across else SPLIT_RATE)
        for rows, stride, across in sides
    )


def reckoned(call: Call, units: int) -> tuple[float, float]:
    """Seconds that a call takes about: this way, all launches; and in plain fp32."""
    rows = _rows(call)
    ours = 2 * LAUNCH + split_time(call) + product_time(call, choose(call, units), units)
    bytes_ = 4 * (rows * call.K + call.M * call.N * call.batch)
    return ours, PLAIN_START + max(2.0 * call.M * call.N * call.K * call.batch / PLAIN_RATE, bytes_ / MEMORY_RATE)


def faster(call: Call, units: int) -> str:
    """Why it should not be expected to be faster than plain fp32; empty where it should."""
    if not (call.M and call.N):
        return "the result is empty"
    ours, plain = reckoned(call, units)
    if ours * MARGIN <= plain:
        return ""
    return f"fp32x would take about {ours * 1e6:.0f} us with all its launches, plain fp32 {plain * 1e6:.0f}"


def _tiles(call: Call, variant: Variant) -> int:
    return ceil(call.M, variant.BM) * ceil(call.N, variant.BN) * call.batch
