"""Hopper's plain fp32 kernel as a way to compute a call: how long it takes about, and the plan of ``toprung.hopper_fp32`` behind
the engine's interface."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from toprung import hopper_fp32
from toprung.backends.base import Session
from toprung.blas import expected
from toprung.blas.call import Call, GemmCall, widths
from toprung.blas.choice import FFMA, Choice, PassedOver, Way
from toprung.blas.kernel import Run
from toprung.device import Device
from toprung.hopper_fp32 import Variant
from toprung.tile import Tile

FFMA_LEAST = 1 << 20
"""Results of C from which on the kernel is weighed: below, adding parts of its large tiles takes longer than computing them."""

FFMA_RESULT = (1.7, 0.13)
"""Clocks of a multiprocessor for each result of C beyond what is reckoned: written one float at a time or two, and four."""

_Key = tuple[GemmCall, Variant]
_plans: WeakKeyDictionary[Session, dict[_Key, hopper_fp32.Plan]] = WeakKeyDictionary()
_making = threading.RLock()


def variant_of(tile: Tile | None, options: dict[str, int]) -> Variant:
    """The kernel's parameters, as a choice or a stored entry names them."""
    assert tile is not None
    return Variant(tile.BM, tile.BN, tile.BK or 0, tile.STAGES or 0, **{k: options[k] for k in ("WAIT_AT", "GROUP", "TURN_A")})


def ffma_choice(variant: Variant, why: str, passed_over: PassedOver = ()) -> Choice:
    """Hopper's kernel with these parameters."""
    options = ("GROUP", variant.GROUP), ("TURN_A", variant.TURN_A), ("WAIT_AT", variant.WAIT_AT)
    return Choice(FFMA, variant.tile, options, why, passed_over)


def ffma_seconds(device: Device, call: GemmCall) -> float:
    """About how long Hopper's kernel takes, with what writing C adds to what it reckons itself."""
    each = FFMA_RESULT[widths(call)[2] == 4]
    return hopper_fp32.reckoned(call, device.compute_units) + each * call.M * call.N / (device.compute_units * expected.hz(device))


def ffma_ways(device: Device, call: GemmCall) -> list[Way]:
    """Hopper's kernel with the variant that suits a call, where the device has what it is written for and C is large."""
    if call.M * call.N < FFMA_LEAST or hopper_fp32.supported(device, call):
        return []
    return [Way(ffma_seconds(device, call), FFMA, hopper_fp32.choose(call, device.compute_units).tile)]


def ffma_by_model(device: Device, call: GemmCall, passed_over: PassedOver) -> Choice:
    """Hopper's kernel with the variant that suits a call."""
    variant = hopper_fp32.choose(call, device.compute_units)
    direct = {"A": hopper_fp32.direct_a(call, variant), "B": hopper_fp32.direct_b(call)}
    laid = [name for name, lies_well in direct.items() if not lies_well]
    why = f"least by the model: the copy engine feeds {device.compute_units} blocks that stay"
    why += f", after a pass that lays out {' and '.join(laid)}" * bool(laid)
    return ffma_choice(variant, why, passed_over)


def plan_of(session: Session, call: Call, choice: Choice) -> hopper_fp32.Plan:
    """The plan of a call: one for all threads, because it holds the flags of streams."""
    assert isinstance(call, GemmCall)
    key = call, variant_of(choice.tile, dict(choice.options))
    with _making:
        kept = _plans.setdefault(session, {})
        if key not in kept:
            kept[key] = hopper_fp32.Plan(session, *key)
        return kept[key]


def product(session: Session, call: Call, choice: Choice) -> Run:
    """All launches."""
    return plan_of(session, call, choice).run


def workspace_bytes(call: Call, choice: Choice, units: int) -> int:
    """Scratch memory: operands laid out, and parts of tiles."""
    assert isinstance(call, GemmCall)
    return hopper_fp32.workspace_bytes(call, variant_of(choice.tile, dict(choice.options)), units)


def launches(call: Call, choice: Choice, units: int) -> int:
    """For each panel: the layout pass, where there is something to lay out, and the product's."""
    assert isinstance(call, GemmCall)
    if not (call.M and call.N):
        return 0
    variant = variant_of(choice.tile, dict(choice.options))
    chain = hopper_fp32.links(call.K, hopper_fp32.chains_of(call, variant, units), variant.BK)
    return hopper_fp32.launches(hopper_fp32.panels(call, variant=variant), chain)
