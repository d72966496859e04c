"""fp32x: the block's shape, the stages of its ring, what stays in the matrix unit, the raster, and slices of K."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from toprung import hopper
from toprung.blas.call import Call, GemmCall
from toprung.blas.choice import Choice
from toprung.blas.fp32x import FP32X, choice_of, way_of
from toprung.blas.tunable import Axes, Point, Tunable
from toprung.device import Device

SPACE = {"CONSUMERS": (2, 1), "BN": (128, 64, 32), "STAGES": (6, 8, 4, 12), "INTERVAL": (1, 2), "GROUP": (8, 16, 4, 1)}
"""See ``hopper.Variant``. How operands are split into terms follows from the call."""
FEW_SLICES = (1, 2, 3, 4)
"""Slices that are tried beside those that fill the device."""


def axes(device: Device, call: Call) -> Axes:
    """For products, where the device has what the kernel is written for."""
    if not isinstance(call, GemmCall) or not (call.M and call.N) or hopper.supported(device, call):
        return {}
    filling = {way.slices for way in hopper.ways(call, device.compute_units)}
    few = {hopper.trimmed(call.K, min(n, hopper.most_slices(call))) for n in FEW_SLICES}
    return {**SPACE, "INTERVAL": SPACE["INTERVAL"] if call.K >= hopper.TWICE else (1,), "SLICES": tuple(sorted(filling | few))}


def make(device: Device, call: Call, at: Point) -> Choice | None:
    """A point, if its ring fits, it is as accurate as fp32, and none of its slices is empty or too short."""
    assert isinstance(call, GemmCall)
    variant = hopper.Variant(**{name: at[name] for name in SPACE})
    slices = hopper.trimmed(call.K, at["SLICES"])
    if variant.refused() or variant.unfit(call) or slices > hopper.most_slices(call):
        return None
    return choice_of(hopper.Way(variant, slices))


def point_of(choice: Choice) -> Point:
    """Its parameters."""
    variant, slices = way_of(choice.tile, dict(choice.options))
    return {**{name: getattr(variant, name) for name in SPACE}, "SLICES": slices}


def coarse(device: Device, call: Call) -> Iterator[Point]:
    """Every block that is weighed, its ring and raster as they are, in all slices; and with more in the matrix unit."""
    known = axes(device, call)
    for variant, interval, slices in itertools.product(hopper.COSTS, known["INTERVAL"], known["SLICES"]):
        yield {**{name: getattr(variant, name) for name in SPACE}, "INTERVAL": interval, "SLICES": slices}


TUNABLE = Tunable(FP32X, axes, make, point_of, coarse)
