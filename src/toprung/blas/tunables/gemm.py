"""The tunable product: blocks, warps, pieces, buffers, slices of K, and how the loop is written."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

from toprung.blas.call import Call, GemmCall
from toprung.blas.choice import Choice
from toprung.blas.kernel import kernel
from toprung.blas.space import fitted, point
from toprung.blas.tiles import slicings
from toprung.blas.tunable import Axes, Point, Tunable
from toprung.device import Device
from toprung.tile import Tile

RECORD = kernel("gemm")
SEARCHED = {s.name: s.values for s in RECORD.switches if s.searched}
RULES = RECORD.all_rules({})

ON_CPU: Axes = {
    "BM": (8, 16, 32, 64), "BN": (16, 32, 64, 128), "BK": (8, 16, 32, 64), "WM": (8, 16, 32, 64), "WN": (16, 32, 64),
    "TM": (4, 8, 16), "TN": (8, 16, 32), "VEC": (16, 8, 4), "STAGES": (1,), "PADA": (0,), "PADB": (0,), "SPLIT_K": (1,),
    "AHEAD": (0, 1), "ORDER": (0, 1), "GROUP_M": (8, 1), "RESIDENT": (0,),
}  # fmt: skip
"""On a CPU a work-item is a loop over vectors, and warps are an order of them: wide pieces, and one buffer, because a second
would hide no latency."""

BLOCKS = ("BM", "BN", "BK", "WM", "WN", "TM", "TN")
SIZES = tuple(replace(RECORD.tiles["gpu"][0], BM=n, BN=n, BK=8) for n in (32, 64, 128))
"""Blocks from which the numbers of slices follow that give every compute unit something to do."""


def axes(device: Device, call: Call) -> Axes:
    """None for a vector; else the record's space, with the slices that this call may need."""
    if not isinstance(call, GemmCall) or not (call.M and call.N and call.K):
        return {}
    base = {**RECORD.space, **SEARCHED} if device.kind == "gpu" else ON_CPU
    slices = {n for tile in SIZES for n in slicings(call, tile, device.compute_units)}
    return {**base, "SPLIT_K": tuple(sorted({*base["SPLIT_K"], *slices}))}


def make(device: Device, call: Call, at: Point) -> Choice | None:
    """A point with accesses as wide as the operands and the tile allow."""
    assert isinstance(call, GemmCall)
    tile = Tile(**{k: v for k, v in at.items() if k not in SEARCHED})
    if (tile.SPLIT_K or 1) > 1 and (tile.SPLIT_K or 1) * (tile.BK or 1) > call.K:
        return None
    if not _legal(device, replace(fitted(call, tile), SPLIT_K=None)):
        return None
    return replace(point(device, call, tile, {k: v for k, v in at.items() if k in SEARCHED}), why="")


def point_of(choice: Choice) -> Point:
    """A choice's tile and those of its switches that are searched."""
    assert choice.tile is not None
    found = {**choice.tile.given(), **{k: v for k, v in choice.options if k in SEARCHED}}
    return {"SPLIT_K": 1, **{k: v for k, v in found.items() if k not in ("VA", "VB")}}


def coarse(device: Device, call: Call) -> Iterator[Point]:
    """Every legal block in one and two buffers with the slices that suit it; everything else at its first value."""
    assert isinstance(call, GemmCall)
    known = axes(device, call)
    first = {name: values[0] for name, values in known.items()} | ({"PADA": 4, "PADB": 4} if device.kind == "gpu" else {})
    for values in itertools.product(*(known[name] for name in BLOCKS)):
        at = {**first, **dict(zip(BLOCKS, values, strict=True))}
        at["VEC"] = next((v for v in known["VEC"] if at["TN"] % v == 0), 1)
        if at["WM"] > at["BM"] or at["WN"] > at["BN"] or (device.kind != "gpu" and _wasteful(at, call)):
            continue
        for stages in known["STAGES"]:
            tile = Tile(**{k: v for k, v in at.items() if k not in SEARCHED and k != "STAGES"}, STAGES=stages)
            if _legal(device, replace(fitted(call, tile), SPLIT_K=None)):
                for slices in slicings(call, tile, device.compute_units):
                    yield {**at, "STAGES": stages, "SPLIT_K": slices}


def _wasteful(at: Point, call: GemmCall) -> bool:
    """Whether most of a block would lie outside the result."""
    return at["BM"] >= 2 * max(call.M, 8) or at["BN"] >= 2 * max(call.N, 16)


@functools.lru_cache(1 << 17)
def _legal(device: Device, tile: Tile) -> bool:
    return all(rule.test(tile, device) for rule in RULES)


TUNABLE = Tunable("gemm", axes, make, point_of, coarse)
