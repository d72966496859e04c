"""Hopper's plain fp32 kernel as a way to compute a call: the plan of ``toprung.hopper_fp32`` behind the engine's interface."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from toprung import hopper_fp32
from toprung.backends.base import Session
from toprung.blas.call import Call, GemmCall
from toprung.blas.choose import Choice
from toprung.blas.kernel import Run
from toprung.hopper_fp32 import Variant
from toprung.tile import Tile

_Key = tuple[GemmCall, Variant]
_plans: WeakKeyDictionary[Session, dict[_Key, hopper_fp32.Plan]] = WeakKeyDictionary()
_making = threading.RLock()


def variant_of(tile: Tile | None, options: dict[str, int]) -> Variant:
    """The kernel's parameters, as a choice or a stored entry names them."""
    assert tile is not None
    return Variant(tile.BM, tile.BN, tile.BK or 0, tile.STAGES or 0, **{k: options[k] for k in ("WAIT_AT", "GROUP", "TURN_A")})


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


def launches(call: Call, choice: Choice) -> int:
    """For each panel: the layout pass, where there is something to lay out, and the product."""
    assert isinstance(call, GemmCall)
    return (
        hopper_fp32.launches(hopper_fp32.panels(call, variant=variant_of(choice.tile, dict(choice.options))))
        if call.M and call.N
        else 0
    )
