"""The product by pieces, for large C on a GPU: how deep its tiles are, the order of its multiplications, its bands."""

from __future__ import annotations

from dataclasses import replace

from toprung.blas.call import Call, GemmCall, widths
from toprung.blas.choice import Choice
from toprung.blas.kernel import kernel
from toprung.blas.pieces import PIECES
from toprung.blas.space import fitted
from toprung.blas.tunable import Axes, Point, Tunable
from toprung.device import Device
from toprung.tile import broken

LEAST = 1 << 20
"""Results of C from which on blocks of 128×128 are worth trying."""
SPACE: Axes = {"BK": (16, 8), "ORDER": (1, 0), "INDEX32": (1, 0), "GROUP_M": (8, 4, 16)}
RECORD = kernel(PIECES)


def axes(device: Device, call: Call) -> Axes:
    """For one large product on a GPU."""
    large = isinstance(call, GemmCall) and call.batch == 1 and call.K > 0 and call.M * call.N >= LEAST
    return SPACE if large and device.kind == "gpu" else {}


def make(device: Device, call: Call, at: Point) -> Choice | None:
    """A point with accesses as wide as the operands allow; two work-groups a multiprocessor."""
    assert isinstance(call, GemmCall)
    tile = fitted(call, replace(RECORD.tiles["gpu"][0], BK=at["BK"]))
    index32 = int(max(*call.extents, call.M * call.N) < 2**31)
    if at["INDEX32"] > index32 or broken(RECORD.all_rules({}), tile, device):
        return None
    options = {
        "TRANS_A": int(call.trans_a), "TRANS_B": int(call.trans_b), "VC": widths(call)[2], "INDEX32": at["INDEX32"], "RESIDENT": 2,
        "ORDER": at["ORDER"], "GROUP_M": at["GROUP_M"],
    }  # fmt: skip
    return Choice(PIECES, tile, tuple(sorted(options.items())))


def point_of(choice: Choice) -> Point:
    """Its parameters."""
    assert choice.tile is not None
    options = dict(choice.options)
    return {"BK": choice.tile.BK or 1, **{name: options[name] for name in ("ORDER", "INDEX32", "GROUP_M")}}


TUNABLE = Tunable(PIECES, axes, make, point_of)
