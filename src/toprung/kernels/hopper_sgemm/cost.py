"""Cost model of plain fp32 on Hopper: which products it computes, how tiles are dealt out, predicted seconds."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

from toprung.device import Device
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper import ceil, is_hopper
from toprung.kernels.hopper_sgemm.config import CHAIN, FIRST, SHORT_CHAIN, VARIANTS, SgemmConfig

DEEPEST = 1 << 24
"""Largest K: a share's stages are counted with 31 bits."""
RATE = 58.7e12 / 132
"""Operations a second of an SM in the main loop, from a product of 8192 cubed on an H200, at the clock it keeps there.

This and what follows come from one shape and one layout (TN) and were not fitted since: ``fp32-sustained.json`` and
``fp32-shapes.json`` of results/nvidia-h200 hold what they predict beside what was measured."""
START = 8e-6
"""Seconds of a launch, before its first product and after its last."""
TILE = 2e-6
"""Seconds in which an SM writes a tile."""
PART = 3e-6
"""Seconds in which it adds a part that another left."""
LAY_RATE = 3.3e12
"""Bytes a second of the layout pass, what it reads and what it writes: between an H100's 2.6e12 and an H200's 4e12."""
LAY_START = 4e-6
"""Seconds of the layout pass's launch."""
BROAD = 32
"""Waves of tiles from which on a wave is as high as it is wide: a fifth less is fetched from memory, which takes less power. With
half as many it changes nothing, with an eighth it is slower."""
MEMORY_RATE = 4e12
"""Bytes a second of memory."""
TURNING = 1.1
"""Times as long as without: a product that turns A."""
COPYING, SLOW_COPYING, COPIED_ROWS = 0.11, 1.5, 128
"""Share by which a product takes longer whose threads copy both operands of 128×256 into the ring, others by their rows of a stage;
times as long where K runs along memory and a stage has more than so many rows, or they begin on 16 bytes, most often at a power of
two (``odd-shapes-copies.json`` of results/nvidia-h100-80gb-hbm3)."""
SHORTER = 1.02
"""Times as long as with stages of 14: a product with stages of 10, which waits oftener. 1.005 to 1.012 where K is long, by the
checks of the promise (``tune-check*.json`` of results/nvidia-h200); a little more, so that they are for what they clearly save."""
FILLED = 0.9
"""Share of the SMs that waves of tiles occupy, from which on they are called filled."""


def supported(device: Device, desc: GemmDesc) -> str:
    """Return why a product cannot be computed this way, as a sentence; empty where it can."""
    if not is_hopper(device):
        return f"its TMA and its exchange of registers are Hopper's, and this is {device}"
    if desc.batch != 1:
        return "it computes one product at a time"
    if not (desc.M and desc.N and desc.K):
        return "the product is empty"
    if desc.K > DEEPEST:
        return f"K is {desc.K:,}, more than {DEEPEST:,}"
    return ""


class Schedule(NamedTuple):
    """The dealing out of tiles.

    Attributes
    ----------
    grid : blocks
    shared : tiles that are cut along K over all of them; the rest are dealt out whole
    """

    grid: int
    shared: int


def tiles_of(desc: GemmDesc, variant: SgemmConfig) -> int:
    """Return the tiles of C."""
    return -(-desc.M // variant.BM) * -(-desc.N // variant.BN)


def schedules(desc: GemmDesc, variant: SgemmConfig, units: int) -> list[Schedule]:
    """Return what is weighed: whole tiles alone, or what does not fill whole waves cut evenly over all blocks."""
    tiles, chunks = tiles_of(desc, variant), ceil(desc.K, variant.BK)
    found = [Schedule(min(units, tiles), 0)]
    if tiles > units and tiles % units:
        found.append(Schedule(units, tiles % units + units))
    elif tiles < units:
        grids = {min(tiles * n, units) for n in range(2, ceil(units, tiles) + 1)}
        found += [Schedule(grid, tiles) for grid in sorted(grids) if grid <= tiles * chunks]
    return found


def chain_of(desc: GemmDesc, variant: SgemmConfig, units: int) -> int:
    """Return how many products of a sum are added up by themselves, so that errors are no larger than cuBLAS's.

    Where tiles leave SMs without one cuBLAS cuts sums into more parts, by what ``fuzz.json`` of results/nvidia-h200 shows.
    """
    tiles = tiles_of(desc, variant)
    return CHAIN if tiles >= FILLED * ceil(tiles, units) * units else SHORT_CHAIN


def schedule_time(desc: GemmDesc, variant: SgemmConfig, schedule: Schedule) -> float:
    """Return the seconds that the fullest block takes."""
    grid, shared = schedule
    chunks = -(-desc.K // variant.BK)
    whole = -((shared - tiles_of(desc, variant)) // grid)
    mine = -(-shared * chunks // grid) + whole * chunks
    parts = -(-grid // shared) if shared else 0  # of a tile: one is written and the others are added
    each = 2.0 * variant.BM * variant.BN * variant.BK / RATE
    return mine * each + (whole - (-shared // grid)) * TILE + parts * PART


def schedule(desc: GemmDesc, variant: SgemmConfig, units: int) -> Schedule:
    """Return the schedule that is done first."""
    return min(schedules(desc, variant, units), key=functools.partial(schedule_time, desc, variant))


def product_time(desc: GemmDesc, variant: SgemmConfig, units: int) -> float:
    """Return the seconds of the product's launch."""
    moved = 4 * (desc.M * desc.K + desc.K * desc.N + desc.M * desc.N)
    multiplying = min([schedule_time(desc, variant, one) for one in schedules(desc, variant, units)])
    return START + max(multiplying, moved / MEMORY_RATE)


def select_variant(desc: GemmDesc, units: int) -> SgemmConfig:
    """Return the block shape with which all is done first; very large products are walked in bands twice as high."""
    found = min([v for v in VARIANTS if not unfit(desc, v)], key=functools.partial(predicted, desc, units))
    return replace(found, GROUP=2 * found.GROUP) if found == FIRST and tiles_of(desc, found) > BROAD * units else found


def predicted(desc: GemmDesc, units: int, variant: SgemmConfig | None = None) -> float:
    """Return the predicted seconds of a product, the layout pass included."""
    variant = variant or select_variant(desc, units)
    lay_a, lay_b = laid_out(desc, variant)
    moved = 8.0 * desc.K * (lay_a * desc.M + lay_b * desc.N)
    slower = TURNING if variant.TURN_A else SHORTER if variant.BK < FIRST.BK else 1.0
    time = product_time(desc, variant, units) * slower * copying(desc, variant)
    return time + (LAY_START + moved / LAY_RATE if moved else 0.0)


def direct_a(desc: GemmDesc, variant: SgemmConfig = FIRST) -> bool:
    """Return True if A is read where it lies: every row on 16 bytes, and K×M, or M×K where the product turns it."""
    long_enough = desc.trans_a and desc.lda >= desc.M and not variant.TURN_A
    turned = variant.TURN_A and not desc.trans_a and desc.lda >= desc.K
    return bool((long_enough or turned) and desc.lda % 4 == 0 and desc.align_a == 4)


def narrow_c(desc: GemmDesc, variant: SgemmConfig = FIRST) -> bool:
    """Return True if rows of C do not begin on 16 bytes and go through shared memory."""
    return bool(variant.held) and (desc.ldc % 4 != 0 or desc.align_c < 4)


def unfit(desc: GemmDesc, variant: SgemmConfig) -> str:
    """Return why a variant cannot compute a product; empty where it can."""
    if variant.COPY and not any(copied(desc, variant)):
        return "the copy engine fetches both operands as they lie"
    return "it turns A, which must be M×K on 16 bytes" if variant.TURN_A and not direct_a(desc, variant) else ""


def direct_b(desc: GemmDesc) -> bool:
    """Return True if B is read where it lies: K×N, every row on 16 bytes."""
    return not desc.trans_b and desc.ldb % 4 == 0 and desc.ldb >= desc.N and desc.align_b == 4


def laid_out(desc: GemmDesc, variant: SgemmConfig = FIRST) -> tuple[bool, bool]:
    """Return whether A is laid out by a pass beforehand, and whether B is."""
    return not (variant.COPY or direct_a(desc, variant)), not (variant.COPY or direct_b(desc))


def copied(desc: GemmDesc, variant: SgemmConfig) -> tuple[int, int]:
    """Return how A is copied into the ring, and how B: 0 if the copy engine fetches it, 1 if K runs along memory, 2 if across."""
    a, b = ((not direct) * variant.COPY for direct in (direct_a(desc, variant), direct_b(desc)))
    return a * (2 if desc.trans_a else 1), b * (1 if desc.trans_b else 2)


def copying(desc: GemmDesc, variant: SgemmConfig) -> float:
    """Return how many times as long a product takes for what its threads copy."""
    if not variant.COPY:
        return 1.0
    a, b = copied(desc, variant)
    along = [(rows, ld) for how, rows, ld in ((a, variant.BM, desc.lda), (b, variant.BN, desc.ldb)) if how == 1]
    if any(rows > COPIED_ROWS or ld % 4 == 0 for rows, ld in along):
        return SLOW_COPYING
    return 1 + COPYING * (variant.BM * (a > 0) + variant.BN * (b > 0)) / (FIRST.BM + FIRST.BN)


class Piece(NamedTuple):
    """A panel, or some of K of one, as a product, for the schedule."""

    M: int
    N: int
    K: int
