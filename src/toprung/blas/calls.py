"""Cache of decided calls: each is found again by a few cheap attributes of its operands, and started at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from toprung import forks
from toprung.arrays.base import Adapter, Operand
from toprung.blas.operands import Arranged
from toprung.blas.product import Call
from toprung.dispatch import autotune
from toprung.dispatch.recent import Recent

KEPT = 4096
"""Number of calls, the last that were made, that are remembered."""

MISS: Any = object()
"""Result of ``again`` for an unknown call."""

_calls: Recent[Call] = Recent(KEPT)
"""The library's cache of calls: types, signatures (shape, strides, place) and alignment of the operands, and the options."""

_adapters: dict[type, Adapter] = {}
"""Adapters of the types that calls are remembered for."""


groups: Recent[Any] = Recent(16384, weigh=lambda decided: decided.count)
pairs: Recent[Any] = Recent(16384)
"""The library's caches of groups, by number of products, and of their pairs: what ``matmul_grouped`` decided, by its own keys."""


def forget() -> None:
    """Forget all calls: what was selected is selected anew."""
    for cache in (_calls, groups, pairs):
        cache.clear()


@forks.in_child
def _of_parent() -> object:
    """Return the parent's calls, which are forgotten: a child may use none of its devices."""
    theirs = [cache.every() for cache in (_calls, groups, pairs)]
    forget()
    return theirs


autotune.HERE.forget.append(forget)


def again(a: Any, b: Any, out: Any, precision: str, own: bool, device: Any) -> tuple[Any, Hashable]:
    """Return the result of a call like an earlier one, or MISS; and the key to remember a new one by, None if it cannot be."""
    adapter = _adapters.get(type(a))
    if adapter is None or _adapters.get(type(b)) is not adapter or (out is not None and _adapters.get(type(out)) is not adapter):
        return MISS, None
    if adapter.is_watching():
        return MISS, None
    like_a, like_b = adapter.signature(a), adapter.signature(b)
    if like_a is None or like_b is None:
        return MISS, None
    try:
        at_a, at_b = adapter.address(a), adapter.address(b)
    except RuntimeError:  # tensors that stand for others, inside torch.vmap, have none
        return MISS, None
    key: Hashable = (adapter, like_a, at_a & 15, like_b, at_b & 15, precision, own, device)
    at_c = 0
    if out is not None:
        like_c = adapter.signature(out, writable=True)
        if like_c is None:
            return MISS, None
        at_c = adapter.address(out)
        key = (adapter, like_a, at_a & 15, like_b, at_b & 15, like_c, at_c & 15, precision, own, device)
    try:
        call = _calls[key]
    except TypeError:  # a device= that cannot be hashed: the slow path reports the error
        return MISS, None
    if call is None or (call.depends and not call.is_valid()):
        return MISS, key
    if out is None:
        return call.product(a, b, at_a, at_b), key
    if not call.is_clear(at_a, at_b, at_c) and not (adapter.has_memory_objects and elsewhere(adapter, a, b, out)):
        return MISS, key
    call.start(a, b, out, at_a, at_b, at_c)
    return out, key


def remember(key: Hashable, call: Call, given: Arranged) -> None:
    """Remember a call for ``again`` under its key; without one, make ``again`` handle arrays of these types from now on."""
    if signatures(call, given) is None:
        return
    if key is None:
        know((given.first, given.second, given.result))
        return
    call.shape = given.shape
    _calls.keep(key, call)


def adapter_of(things: Iterable[Any]) -> Adapter | None:
    """Return the adapter of arrays that calls may be remembered for; None if they have several, or the library watches now."""
    found = {_adapters.get(kind) for kind in set(map(type, things))}
    adapter = found.pop() if len(found) == 1 else None
    return None if adapter is None or adapter.is_watching() else adapter


def know(operands: Iterable[Operand]) -> None:
    """Make ``again`` handle arrays of the types of these from now on."""
    _adapters.update((type(o.thing), o.adapter) for o in operands)


def signatures(call: Call, given: Arranged) -> tuple[Hashable, Hashable, Hashable] | None:
    """Return the signatures of the operands of a call; None if it cannot be started on arrays that have the same ones."""
    adapter, found = call.adapter, []
    for operand in (given.first, given.second, given.result):
        like = adapter.signature(operand.thing) if operand.adapter is adapter else None
        # an operand at another address than its array's is a copy, made because no kernel reads the array as it lies
        if (
            like is None
            or operand.unordered
            or operand.queue != given.first.queue
            or adapter.address(operand.thing) != operand.address
        ):
            return None
        found.append(like)
    return found[0], found[1], found[2]


def elsewhere(adapter: Adapter, a: Any, b: Any, c: Any) -> bool:
    """Return True if the result lies in another memory object than both inputs."""
    return adapter.memory(c) not in (adapter.memory(a), adapter.memory(b))
