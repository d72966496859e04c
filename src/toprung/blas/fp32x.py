"""fp32x as a way to compute a call: the plan of ``toprung.hopper`` behind the engine's interface."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from toprung import hopper
from toprung.backends.base import Session
from toprung.blas.call import Call, GemmCall
from toprung.blas.kernel import Run

_plans: WeakKeyDictionary[Session, dict[GemmCall, hopper.Plan]] = WeakKeyDictionary()
_making = threading.RLock()


def plan_of(session: Session, call: Call) -> hopper.Plan:
    """The plan of a call: one for all threads, because it holds the counter."""
    assert isinstance(call, GemmCall)
    with _making:
        kept = _plans.setdefault(session, {})
        if call not in kept:
            kept[call] = hopper.plan(session, call)
        return kept[call]


def product(session: Session, call: Call, choice: object) -> Run:
    """All launches; B's handle may be a ``hopper.Prepared``."""
    return plan_of(session, call).run


def workspace_bytes(call: Call, slices: int) -> int:
    """Scratch memory: the terms of both operands, four bytes an element, and the results of slices of K."""
    assert isinstance(call, GemmCall)
    return hopper.workspace_bytes(call, slices=slices)


def launches(call: Call, slices: int) -> int:
    """For each panel: the splitting pass, the product, and what adds slices up."""
    assert isinstance(call, GemmCall)
    return (3 if slices > 1 else 2) * len(hopper.panels(call, hopper.LIMIT)) if call.M and call.N else 0
