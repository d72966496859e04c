"""Plain fp32 on Hopper: the block's shape, how deep its stages are, where the next is waited for, the raster, how A is turned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from toprung import hopper_fp32
from toprung.blas import ffma
from toprung.blas.call import Call, GemmCall
from toprung.blas.choice import FFMA, Choice
from toprung.blas.ffma import FFMA_LEAST, ffma_choice
from toprung.blas.tunable import Axes, Point, Tunable
from toprung.device import Device

SPACE = {"BM": (128, 256, 512, 64), "BK": (14, 12, 10, 16, 8), "WAIT": (1, 2, 3), "GROUP": (8, 4, 16), "TURN_A": (0, 1)}
"""``WAIT``: in which quarter of a stage the next one is waited for. Eight warps own BM × BN of C, so that BN follows from BM."""
FIRST = hopper_fp32.FIRST
AREA = FIRST.BM * FIRST.BN


def axes(device: Device, call: Call) -> Axes:
    """For large products, where the device has what the kernel is written for."""
    if not isinstance(call, GemmCall) or call.M * call.N < FFMA_LEAST or hopper_fp32.supported(device, call):
        return {}
    return SPACE


def make(device: Device, call: Call, at: Point) -> Choice | None:
    """A point with a ring as large as that of the library's first variant, in stages of its own size; legal for the call."""
    assert isinstance(call, GemmCall)
    bm, bk = at["BM"], at["BK"]
    stages = FIRST.shared_bytes // (4 * (bm + AREA // bm) * bk)
    variant = hopper_fp32.Variant(bm, AREA // bm, bk, stages, at["WAIT"] * bk // 4, at["GROUP"], at["TURN_A"])
    return None if variant.refused() or hopper_fp32.unfit(call, variant) else ffma_choice(variant, "")


def point_of(choice: Choice) -> Point:
    """Its parameters."""
    variant = ffma.variant_of(choice.tile, dict(choice.options))
    wait = min(3, max(1, round(4 * variant.WAIT_AT / variant.BK)))
    return {"BM": variant.BM, "BK": variant.BK, "WAIT": wait, "GROUP": variant.GROUP, "TURN_A": variant.TURN_A}


def coarse(device: Device, call: Call) -> Iterator[Point]:
    """A wait in the middle and the usual raster; the block's shape that fits best first."""
    assert isinstance(call, GemmCall)
    units = device.compute_units
    shapes = sorted(SPACE["BM"], key=lambda bm: hopper_fp32.reckoned(call, units, hopper_fp32.Variant(bm, AREA // bm)))
    for bm, bk, turn in itertools.product(shapes[:2], SPACE["BK"][:2], SPACE["TURN_A"]):
        yield {"BM": bm, "BK": bk, "WAIT": 2, "GROUP": 8, "TURN_A": turn}


TUNABLE = Tunable(FFMA, axes, make, point_of, coarse)
