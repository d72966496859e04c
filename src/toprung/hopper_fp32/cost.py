"""What plain fp32 on Hopper can compute, how its tiles are dealt out, and how long a call takes by reckoning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from toprung.device import Device
from toprung.hopper import Call, ceil
from toprung.hopper_fp32.variant import FIRST, VARIANTS, Variant

DEEPEST = 1 << 24
"""Largest K: a share's stages are counted with 31 bits."""
RATE = 58.7e12 / 132
"""Operations a second of a multiprocessor in the main loop: of a product of 8192 cubed on an H200, at the clock it keeps there.

This and what follows come from one shape and one layout (TN) and were not fitted since: ``fp32-sustained.json`` and
``fp32-shapes.json`` of results/nvidia-h200 hold what they reckon beside what was measured."""
START = 8e-6
"""Seconds of a launch, before its first product and after its last."""
TILE = 2e-6
"""Seconds in which a multiprocessor writes a tile."""
PART = 3e-6
"""Seconds in which it adds a part that another left."""
LAY_RATE = 4e12
"""Bytes a second of the layout pass, what it reads and what it writes."""
LAY_START = 4e-6
"""Seconds of the layout pass's launch."""
BROAD = 32
"""Waves of tiles from which on a wave is as high as it is wide: a fifth less is fetched from memory, which takes less power. With
half as many it changes nothing, with an eighth it is slower."""
MEMORY_RATE = 4e12
"""Bytes a second of memory."""
TURNING = 1.1
"""Times as long as without: a product that turns A."""
SHORTER = 1.02
"""Times as long as with stages of 14: a product with stages of 10, which waits oftener. 1.005 to 1.012 where K is long, by the
checks of the promise (``tune-check*.json`` of results/nvidia-h200); a little more, so that they are for what they clearly save."""
CHAINED = 5e-6
"""Seconds that a tile takes longer where it is added to what C has: 2 to 9 µs by ``chains-rows.json`` of results/nvidia-h200."""
CHAIN, SHORT_CHAIN, MOST_CHAINS = 1536, 750, 4
"""Elements of K that a chain has at least, where no operand is laid out and where tiles leave waves unfilled; and how many chains
there may be. ``library.json`` and ``fp32-list.json`` of results/nvidia-h200 show cuBLAS's errors, of sums cut into two to four
there, and of uncut ones elsewhere."""
FILLED = 0.8
"""Share of the multiprocessors that waves of tiles occupy, from which on they are called filled."""


def supported(device: Device, call: Call) -> str:
    """Why a call cannot be computed this way, as a sentence; empty where it can."""
    if device.backend != "cuda" or device.arch != "sm_90":
        return f"its copy engine and its exchange of registers are Hopper's, and this is {device}"
    if call.batch != 1:
        return "it computes one product at a time"
    if not (call.M and call.N and call.K):
        return "the product is empty"
    if call.K > DEEPEST:
        return f"K is {call.K:,}, more than {DEEPEST:,}"
    return ""


class Schedule(NamedTuple):
    """How tiles are dealt out.

    Attributes
    ----------
    grid : blocks
    shared : tiles that are cut along K over all of them; the rest are dealt out whole
    """

    grid: int
    shared: int


def tiles_of(call: Call, variant: Variant) -> int:
    """Tiles of C."""
    return ceil(call.M, variant.BM) * ceil(call.N, variant.BN)


def schedules(call: Call, variant: Variant, units: int) -> list[Schedule]:
    """What is weighed: whole tiles alone, or what does not fill whole waves cut evenly over all blocks."""
    tiles, chunks = tiles_of(call, variant), ceil(call.K, variant.BK)
    found = [Schedule(min(units, tiles), 0)]
    if tiles > units and tiles % units:
        found.append(Schedule(units, tiles % units + units))
    elif tiles < units:
        grids = {min(tiles * n, units) for n in range(2, ceil(units, tiles) + 1)}
        found += [Schedule(grid, tiles) for grid in sorted(grids) if grid <= tiles * chunks]
    return found


def chains_of(call: Call, variant: Variant, units: int) -> int:
    """Into how many launches, one after the other, sums are cut so that errors are no larger than cuBLAS's.

    A sum of K terms in one go is off by about √K roundings of its last terms, in n chains by √(K/n). What it costs: a launch and
    another pass over C each; and α multiplies each chain, which may overflow where the whole would not. A tile that is cut for
    several multiprocessors has as many chains at once.
    """
    tiles = tiles_of(call, variant)
    filled = tiles / (ceil(tiles, units) * units) >= FILLED
    if filled and not (direct_a(call) and direct_b(call)):
        return 1
    wanted = min(MOST_CHAINS, call.K // (CHAIN if filled else SHORT_CHAIN))
    return max(1, ceil(wanted * tiles, max(units, tiles)))


def links(K: int, count: int, step: int) -> list[tuple[int, int]]:
    """First element and length of each chain: whole stages but for the last."""
    each = ceil(ceil(K, step), count) * step
    return [(k, min(each, K - k)) for k in range(0, K, each)]


def schedule_time(call: Call, variant: Variant, schedule: Schedule) -> float:
    """Seconds that the fullest block takes."""
    tiles, chunks = tiles_of(call, variant), ceil(call.K, variant.BK)
    grid, shared = schedule
    whole = ceil(tiles - shared, grid)
    mine = ceil(shared * chunks, grid) + whole * chunks
    parts = ceil(grid, shared) if shared else 0  # of a tile: one is written and the others are added
    each = 2.0 * variant.BM * variant.BN * variant.BK / RATE
    return mine * each + (whole + ceil(shared, grid)) * TILE + parts * PART


def schedule(call: Call, variant: Variant, units: int) -> Schedule:
    """What is done first."""
    return min(schedules(call, variant, units), key=lambda s: schedule_time(call, variant, s))


def product_time(call: Call, variant: Variant, units: int) -> float:
    """Seconds of the product's launches."""
    moved, added = 4 * (call.M * call.K + call.K * call.N + call.M * call.N), ceil(tiles_of(call, variant), units) * CHAINED
    cut = links(call.K, chains_of(call, variant, units), variant.BK)
    pieces: list[Any] = [Piece(call.M, call.N, depth) for _, depth in cut]
    time = sum(schedule_time(piece, variant, schedule(piece, variant, units)) for piece in pieces)
    return len(cut) * START + (len(cut) - 1) * added + max(time, moved / MEMORY_RATE)


def choose(call: Call, units: int) -> Variant:
    """The block's shape with which all is done first; very large products are walked in bands twice as high."""
    found = min((v for v in VARIANTS if not unfit(call, v)), key=lambda v: reckoned(call, units, v))
    return replace(found, GROUP=2 * found.GROUP) if found == FIRST and tiles_of(call, found) > BROAD * units else found


def reckoned(call: Call, units: int, variant: Variant | None = None) -> float:
    """Seconds that a call takes about, the layout pass included."""
    variant = variant or choose(call, units)
    laid = 8.0 * call.K * ((0 if direct_a(call, variant) else call.M) + (0 if direct_b(call) else call.N))
    time = product_time(call, variant, units) * (TURNING if variant.TURN_A else SHORTER if variant.BK < FIRST.BK else 1.0)
    return time + (LAY_START + laid / LAY_RATE if laid else 0.0)


def direct_a(call: Call, variant: Variant = FIRST) -> bool:
    """Whether A is read where it lies: every row on 16 bytes, and K×M, or M×K where the product turns it."""
    long_enough = call.trans_a and call.lda >= call.M and not variant.TURN_A
    turned = variant.TURN_A and not call.trans_a and call.lda >= call.K
    return bool((long_enough or turned) and call.lda % 4 == 0 and getattr(call, "align_a", 4) == 4)


def unfit(call: Call, variant: Variant) -> str:
    """Why a variant cannot compute a call, empty where it can."""
    return "it turns A, which must be M×K on 16 bytes" if variant.TURN_A and not direct_a(call, variant) else ""


def direct_b(call: Call) -> bool:
    """Whether B is."""
    return not call.trans_b and call.ldb % 4 == 0 and call.ldb >= call.N and getattr(call, "align_b", 4) == 4


class Piece(NamedTuple):
    """A panel, or some of K of one, as a call, for the schedule."""

    M: int
    N: int
    K: int
