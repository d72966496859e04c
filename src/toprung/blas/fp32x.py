"""fp32x as a way to compute a call: the plan of ``toprung.hopper`` behind the engine's interface."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from toprung import hopper
from toprung.backends.base import Session
from toprung.blas.call import Call, GemmCall
from toprung.blas.choice import Choice, PassedOver
from toprung.blas.kernel import Run
from toprung.hopper import Variant, Way
from toprung.tile import Tile

FP32X = "fp32x"
"""The choice's kernel for products from two fp16 terms, and the path's name in ``toprung.precision``."""

OPTIONS = ("GROUP", "INTERVAL")
"""The parameters that no tile has."""

_plans: WeakKeyDictionary[Session, dict[tuple[GemmCall, Way], hopper.Plan]] = WeakKeyDictionary()
_making = threading.RLock()


def path_of(kernel: str) -> str:
    """The precision path of a choice's kernel, by its name in ``toprung.precision``; a vendor's is fp32."""
    return FP32X if kernel == FP32X else "fp32"


def choice_of(way: Way, why: str = "", passed_over: PassedOver = ()) -> Choice:
    """A tile and slices of K as a choice."""
    variant, slices = way
    tile = Tile(variant.BM, variant.BN, hopper.CHUNK, STAGES=variant.STAGES, SPLIT_K=slices if slices > 1 else None)
    return Choice(FP32X, tile, tuple((name, getattr(variant, name)) for name in OPTIONS), why, passed_over)


def way_of(tile: Tile | None, options: Mapping[str, int]) -> Way:
    """The inverse, from a choice or a stored entry.

    Raises
    ------
    ValueError
        tile or options of another kernel
    """
    if tile is None or tile.given().keys() - {"SPLIT_K"} != {"BM", "BN", "BK", "STAGES"} or options.keys() != set(OPTIONS):
        raise ValueError(f"hopper/fp32x needs a tile with BM, BN, BK and STAGES, and options {' and '.join(OPTIONS)}")
    if tile.BM % 64 or tile.BK != hopper.CHUNK:
        raise ValueError(f"a block of hopper/fp32x has a multiple of 64 rows, and stages of {hopper.CHUNK} of K")
    return Way(Variant(tile.BM // 64, tile.BN, tile.STAGES or 0, options["INTERVAL"], options["GROUP"]), tile.SPLIT_K or 1)


def plan_of(session: Session, call: Call, choice: Choice) -> hopper.Plan:
    """The plan of a call: one for all threads, because it holds the counter."""
    assert isinstance(call, GemmCall)
    key = call, way_of(choice.tile, dict(choice.options))
    with _making:
        kept = _plans.setdefault(session, {})
        if key not in kept:
            kept[key] = hopper.Plan(session, call, key[1].variant, slices=key[1].slices)
        return kept[key]


def product(session: Session, call: Call, choice: Choice) -> Run:
    """All launches; B's handle may be a ``hopper.Prepared``."""
    return plan_of(session, call, choice).run


def workspace_bytes(call: Call, slices: int) -> int:
    """Scratch memory: the terms of both operands, four bytes an element, and the results of slices of K."""
    assert isinstance(call, GemmCall)
    return hopper.workspace_bytes(call, slices=slices)


def launches(call: Call, slices: int) -> int:
    """For each panel: the splitting pass, the product, and what adds slices up."""
    assert isinstance(call, GemmCall)
    return (3 if slices > 1 else 2) * len(hopper.panels(call, hopper.LIMIT)) if call.M and call.N else 0
