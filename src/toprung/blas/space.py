"""The whole space of the tunable product: what a search may try for a call, and a fair sample of it.

The space itself is data on the kernel's record (``KERNEL.space`` and the switches that are ``searched``); its rules say what of
it is legal on a device. Accesses to A, B and C are as wide as the call's operands and the tile allow: that is never a search's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from toprung.blas.call import GemmCall, widest, widths
from toprung.blas.choice import Choice
from toprung.blas.kernel import kernel
from toprung.blas.slices import whole_slices
from toprung.device import Device
from toprung.tile import Tile, broken


def draws(device: Device, call: GemmCall, seed: int) -> Iterator[Choice]:
    """Legal points of the space, each as likely as any other and none twice; the seed and the device decide which.

    The order does not end: a space that is small would be drawn from for ever once it is used up.
    """
    rng, record, seen = random.Random(seed), kernel("gemm"), set[Choice]()
    rules = record.all_rules({})
    while True:
        tile = Tile(**{name: rng.choice(values) for name, values in record.space.items()})
        switches = {s.name: rng.choice(s.values) for s in record.switches if s.searched}
        if not broken(rules, fitted(call, tile), device) and (found := point(device, call, tile, switches)) not in seen:
            seen.add(found)
            yield found


def fitted(call: GemmCall, tile: Tile) -> Tile:
    """A tile with accesses to A and B as wide as may be."""
    a, b, _ = widths(call)
    return replace(tile, VA=min(a, tile.TM or 1), VB=min(b, tile.TN or 1))


def point(device: Device, call: GemmCall, tile: Tile, switches: dict[str, int]) -> Choice:
    """A tile and the switches that are a search's to choose, with all that follows from the call."""
    tile = fitted(call, tile)
    slices = whole_slices(call.K, tile.BK or 1, tile.SPLIT_K or 1)
    vc = min(widths(call)[2] if slices == 1 else widest(call.N), tile.VEC or 1)
    options = {
        "TRANS_A": int(call.trans_a), "TRANS_B": int(call.trans_b), "VC": vc,
        "INDEX32": int(max(*call.extents, call.M * call.N) < 2**31),
    }  # fmt: skip
    made = kernel("gemm").options(device, options | switches)
    return Choice(
        "gemm", replace(tile, SPLIT_K=slices if slices > 1 else None), tuple(sorted(made.items())), "a point of the space"
    )
