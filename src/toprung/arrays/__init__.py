"""Adapters of array libraries, discovered in this folder: one module each, with an ``adapter``. Nothing lists the modules."""

from __future__ import annotations

import functools
from typing import Any

from toprung.arrays.base import Adapter, Operand
from toprung.backends import constants

_by_type: dict[type, Adapter] = {}


@functools.cache
def adapters() -> tuple[Adapter, ...]:
    """Return every adapter: libraries first, then the protocols that many libraries share."""
    return tuple(sorted(constants(__name__, __path__, "adapter").values(), key=lambda a: a.order))


def adapter_of(thing: Any) -> Adapter | None:
    """Return the adapter that knows this array; None if none does (a list, a number)."""
    kind = type(thing)
    known = _by_type.get(kind)
    if known is None:
        known = next((a for a in adapters() if a.knows(kind)), None)
        if known is None:  # the protocols may also be spoken by one object alone
            return next((a for a in adapters() if a.order and any(hasattr(thing, name) for name in a.speaks)), None)
        _by_type[kind] = known
    return known


def operand(thing: Any, name: str) -> Operand | None:
    """Return an array as an Operand; None if it is no array.

    Raises
    ------
    BadArray
        an array that is not float32
    """
    adapter = adapter_of(thing)
    return None if adapter is None else adapter.operand(thing, name)
