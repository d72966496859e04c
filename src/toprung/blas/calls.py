"""Cache of decided calls: each is found again by a few cheap attributes of its operands, and started at once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

from toprung import forks
from toprung.arrays.base import Adapter, Operand
from toprung.blas import receipt
from toprung.blas.operands import Arranged
from toprung.blas.product import Call, OnDevice
from toprung.dispatch import autotune
from toprung.dispatch.recent import Recent
from toprung.errors import LaunchError

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
kin: Recent[Any] = Recent(2048)
"""Caches of ``matmul_grouped``'s decisions, for groups and pairs of groups, and of ranges of sizes.

``groups`` is limited by the number of products. For the keys of ranges see ``fresh.py``."""


def forget() -> None:
    """Forget all calls: what was selected is selected anew."""
    for cache in (_calls, groups, pairs, kin):
        cache.clear()


@forks.in_child
def _of_parent() -> object:
    """Return the parent's calls, which are forgotten: a child may use none of its devices."""
    theirs = [cache.every() for cache in (_calls, groups, pairs, kin)]
    forget()
    return theirs


autotune.HERE.forget.append(forget)


def _again(a: Any, b: Any, out: Any, precision: str, own: bool, device: Any) -> tuple[Any, Hashable]:
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
    if out is not None:
        like_c = adapter.signature(out, writable=True)
        if like_c is None:
            return MISS, None
        key = (adapter, like_a, at_a & 15, like_b, at_b & 15, like_c, adapter.address(out) & 15, precision, own, device)
    try:
        call = _calls[key]
    except TypeError:  # a device= that cannot be hashed: the slow path reports the error
        return MISS, None
    return (MISS, key) if call is None else _started(call, key, a, b, out, at_a, at_b)


def _started(call: Call, key: Hashable, a: Any, b: Any, out: Any, at_a: int, at_b: int) -> tuple[Any, Hashable]:
    """Return the result of a call that was found by its key, and the key; MISS where it must be looked at again."""
    if call.depends and not call.is_valid():
        return MISS, key
    if out is None:
        return call.product(a, b, at_a, at_b), key
    adapter = call.adapter
    at_c = adapter.address(out)
    if not call.is_clear(at_a, at_b, at_c) and not (adapter.has_memory_objects and elsewhere(adapter, a, b, out)):
        return MISS, key
    call.start(a, b, out, at_a, at_b, at_c)
    return out, key


again: Callable[..., tuple[Any, Hashable]] = _again
"""``_again``, or from the first arrays with an exchange in C on the function of that name in ``native/entry.cpp``."""


def enter(adapter: Adapter) -> None:
    """Have calls on a library's arrays be found and started by ``native/entry.cpp``, where it is built."""
    global again
    from toprung.backends import native_plan  # CUDA's, which other devices do not need

    if (exchange := adapter.exchange()) is None or (entry := native_plan.entry()) is None:
        return
    types, more = exchange
    if again is _again:
        entry.install(_calls, kin, MISS, _again, _started, receipt._last)
        again = entry.again
    for kind in types:
        entry.know(kind, *more)


def remember(key: Hashable, call: Call, given: Arranged) -> None:
    """Remember a call for ``again`` under its key; without one, make ``again`` handle arrays of these types from now on."""
    if signatures(call, given) is None:
        return
    if key is None:
        know((given.first, given.second, given.result))
        return
    call.shape = given.shape
    prepare(call, given)
    _calls.keep(key, call)


def prepare(call: Call, given: Arranged) -> bool:
    """Have a call be started by ``native/entry.cpp``; return False if it is Python's."""
    if again is not _again and call.native is None:
        call.native = _by_native(call, given)
    return call.native is not None


START = struct.Struct("=3Q6q")
"""``Start`` in ``native/entry.cpp``."""


def _by_native(call: Call, given: Arranged) -> tuple[Any, ...] | None:
    """Return what ``native/entry.cpp`` starts a call by; None if only Python can.

    That is its ``Start``, and three functions: one makes a result, one the receipt, and one the flags of a stream.
    """
    from toprung.backends import native_plan

    if not isinstance(call, OnDevice) or call.adapter.exchange() is None:
        return None
    plan, session = call.started.plan, cast(Any, call.started.session)
    try:
        made = native_plan.NativePlan.of(native_plan.entry().library, session, plan)
    except LaunchError:
        return None
    start, result = START.pack(made.handle, plan.lent_bytes, call.packed, *call.reach), given.result
    return start, call.adapter.maker(result.thing, result.shape, result.strides), call._left, made.prepare


def adapter_of(things: Iterable[Any]) -> Adapter | None:
    """Return the adapter of arrays that calls may be remembered for; None if they have several, or the library watches now."""
    found = {_adapters.get(kind) for kind in set(map(type, things))}
    adapter = found.pop() if len(found) == 1 else None
    return None if adapter is None or adapter.is_watching() else adapter


def know(operands: Iterable[Operand]) -> None:
    """Make ``again`` handle arrays of the types of these from now on."""
    for one in operands:
        if one.home.kind == "cuda" and one.adapter not in _adapters.values():
            enter(one.adapter)
        _adapters[type(one.thing)] = one.adapter


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
