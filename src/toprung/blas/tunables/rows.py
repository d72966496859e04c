"""A short side or a vector, the large operand row by row: teams, rows of a work-item, slices of K."""

from __future__ import annotations

from dataclasses import replace

from toprung.blas.call import Call
from toprung.blas.choice import Choice
from toprung.blas.kernel import kernel
from toprung.blas.kernels.rows import SMALL
from toprung.blas.short import FEW, MOST_SLICES, Skinny, skinny_widths, turn
from toprung.blas.slices import whole_slices
from toprung.blas.tunable import Axes, Point, Tunable
from toprung.device import Device
from toprung.tile import Tile, broken

SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
SPACES = {
    "gpu": {"ITEMS": (128, 64, 256, 512), "TEAM": (32,), "TM": (4, 1, 2, 8), "SPLIT_K": SLICES},
    "cpu": {"ITEMS": (16, 1, 4, 8, 64), "TEAM": (1,), "TM": (4, 1, 2, 8), "SPLIT_K": (1, 2, 4)},
}
"""``ITEMS`` of a work-group, in teams of ``TEAM`` that share a row."""


def few(call: Call) -> Skinny | None:
    """A call with a short side, from the large operand's point of view; None for any other."""
    if 0 in (call.M, call.N, getattr(call, "K", 1)):
        return None
    found = Skinny.of(call)
    return found if found.few <= FEW and found.length >= found.few else None


def axes(device: Device, call: Call) -> Axes:
    """Where the large operand's rows run along K."""
    found = few(call)
    return SPACES["gpu" if device.kind == "gpu" else "cpu"] if found and found.by_rows else {}


def make(device: Device, call: Call, at: Point) -> Choice | None:
    """A point with the widest accesses."""
    s, record = Skinny.of(call), kernel("rows")
    wide, together = skinny_widths(s)
    teams = at["ITEMS"] // at["TEAM"]
    tile = Tile(BM=teams * at["TM"], BN=at["TEAM"] * wide, TM=at["TM"], TN=wide, VA=wide, VB=together)
    return sliced_choice(device, call, record.stem, tile, at["SPLIT_K"])


def sliced_choice(device: Device, call: Call, stem: str, tile: Tile, slices: int) -> Choice | None:
    """A tile as a choice of one of the kernels for short sides, if it is legal and no slice is empty."""
    s, record = Skinny.of(call), kernel(stem)
    options = record.options(device, {"SMALL": next(n for n in SMALL if n >= s.few)})
    if slices > MOST_SLICES or slices * turn(tile) > max(s.depth, turn(tile)) or broken(record.all_rules(options), tile, device):
        return None
    found = whole_slices(s.depth, turn(tile), slices)
    return Choice(stem, replace(tile, SPLIT_K=found if found > 1 else None), tuple(sorted(options.items())))


def point_of(choice: Choice) -> Point:
    """Teams and rows."""
    assert choice.tile is not None
    tile = choice.tile
    return {"ITEMS": tile.work_items, "TEAM": tile.DN, "TM": tile.TM or 1, "SPLIT_K": tile.SPLIT_K or 1}


TUNABLE = Tunable("rows", axes, make, point_of)
