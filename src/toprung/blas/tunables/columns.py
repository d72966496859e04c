"""A short side or a vector, all columns of the large operand side by side: teams, rows at a time, slices of K."""

from __future__ import annotations

from toprung.blas.call import Call
from toprung.blas.choice import Choice
from toprung.blas.short import Skinny, skinny_widths
from toprung.blas.tunable import Axes, Point, Tunable
from toprung.blas.tunables.rows import SLICES, few, sliced_choice
from toprung.device import Device
from toprung.tile import Tile

SPACES: dict[str, Axes] = {
    "gpu": {"ACROSS": (32, 16, 64), "DN": (4, 2, 8, 16), "TN": (16, 8, 32), "KU": (4, 1, 2, 8), "SPLIT_K": SLICES},
    "cpu": {"ACROSS": (16, 4, 8, 32), "DN": (1, 2), "TN": (16, 8), "KU": (4, 1, 2, 8), "SPLIT_K": (1, 2, 4)},
}
"""``ACROSS`` work-items side by side, ``DN`` of them below each other."""


def axes(device: Device, call: Call) -> Axes:
    """Where the large operand's rows run across K."""
    found = few(call)
    return SPACES["gpu" if device.kind == "gpu" else "cpu"] if found and not found.by_rows else {}


def make(device: Device, call: Call, at: Point) -> Choice | None:
    """A point with the widest accesses."""
    wide, _ = skinny_widths(Skinny.of(call))
    tile = Tile(BM=at["ACROSS"] * wide, BN=at["DN"] * at["TN"], TM=wide, TN=at["TN"], VA=wide, KU=at["KU"])
    return sliced_choice(device, call, "columns", tile, at["SPLIT_K"])


def point_of(choice: Choice) -> Point:
    """Its shape in work-items."""
    assert choice.tile is not None
    t = choice.tile
    return {"ACROSS": t.DM, "DN": t.DN, "TN": t.TN or 1, "KU": t.KU or 1, "SPLIT_K": t.SPLIT_K or 1}


TUNABLE = Tunable("columns", axes, make, point_of)
