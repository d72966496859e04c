"""Plain fp32 on Hopper: the block's shape, how deep its stages are, where the next is waited for, and the raster."""

from __future__ import annotations

from collections.abc import Iterator

from toprung import hopper_fp32
from toprung.blas import ffma
from toprung.blas.call import Call, GemmCall
from toprung.blas.choose import FFMA, FFMA_LEAST, Choice, ffma_choice
from toprung.blas.tunable import Axes, Point, Tunable
from toprung.device import Device

SPACE = {"BM": (128, 256, 512, 64), "BK": (12, 16, 8), "WAIT": (1, 2, 3), "GROUP": (8, 4, 16)}
"""``WAIT``: in which quarter of a stage the next one is waited for. Eight warps own BM × BN of C, so that BN follows from BM."""
AREA = 128 * 256


def axes(device: Device, call: Call) -> Axes:
    """For large products, where the device has what the kernel is written for."""
    if not isinstance(call, GemmCall) or call.M * call.N < FFMA_LEAST or hopper_fp32.supported(device, call):
        return {}
    return SPACE


def make(device: Device, call: Call, at: Point) -> Choice | None:
    """A point with as many stages as there is room for."""
    room = hopper_fp32.Variant()
    stages = room.shared_bytes // (4 * (at["BM"] + AREA // at["BM"]) * at["BK"])
    variant = hopper_fp32.Variant(at["BM"], AREA // at["BM"], at["BK"], stages, at["WAIT"] * at["BK"] // 4, at["GROUP"])
    return None if variant.refused() else ffma_choice(variant, "")


def point_of(choice: Choice) -> Point:
    """Its parameters."""
    variant = ffma.variant_of(choice.tile, dict(choice.options))
    return {
        "BM": variant.BM, "BK": variant.BK, "WAIT": min(3, max(1, round(4 * variant.WAIT_AT / variant.BK))), "GROUP": variant.GROUP,
    }  # fmt: skip


def coarse(device: Device, call: Call) -> Iterator[Point]:
    """A wait in the middle and the usual raster; the block's shape that fits best first."""
    assert isinstance(call, GemmCall)
    shapes = sorted(
        SPACE["BM"], key=lambda bm: hopper_fp32.reckoned(call, device.compute_units, hopper_fp32.Variant(bm, AREA // bm))
    )
    yield from ({"BM": bm, "BK": bk, "WAIT": 2, "GROUP": 8} for bm in shapes[:2] for bk in SPACE["BK"][:2])


TUNABLE = Tunable(FFMA, axes, make, point_of, coarse)
