"""Cache of earlier calls: each is found again by a few cheap attributes of its operands, and launched at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import Any

from toprung.arrays.base import Adapter, Operand
from toprung.blas import receipt
from toprung.blas.product import View, scratch
from toprung.blas.receipt import Receipt
from toprung.dispatch.autotune import FORGET
from toprung.execute import programs as execute
from toprung.execute.programs import CompiledProgram
from toprung.gemm.overlap import span

KEPT = 4096
"""Number of calls that are remembered; past that all are forgotten."""

MISS = object()
"""Result of ``again`` for an unknown call."""


class Known:
    """A call whose kernels are selected: everything but the addresses.

    Attributes
    ----------
    adapter, home : adapter of the operands' library, and the place of their memory
    shape : shape of the result
    receipt : receipt of every such call
    """

    __slots__ = ("_like", "_mine", "_reach", "_ready", "adapter", "home", "receipt", "shape")

    def __init__(
        self, ready: CompiledProgram, views: tuple[View, View, View], like: Operand, shape: tuple[int, ...], left: Receipt
    ) -> None:
        self._ready, self.adapter, self.home, self.shape, self.receipt = ready, like.adapter, like.home, shape, left
        # bytes from each operand's address to its lowest element and to the end of its highest
        self._reach = tuple(x for v in views for x in span(0, v.shape, v.strides))
        self._mine = threading.local()
        self._like = Operand(like.adapter, None, (), (), like.home, 0)

    def clear(self, a: int, b: int, c: int) -> bool:
        """Return True if the result's memory, from its lowest to its highest byte, overlaps that of neither input."""
        a_low, a_high, b_low, b_high, c_low, c_high = self._reach
        low, high = c + c_low, c + c_high
        return (high <= a + a_low or a + a_high <= low) and (high <= b + b_low or b + b_high <= low)

    def start(self, thing: Any, a: int, b: Any, c: int) -> None:
        """Launch on three addresses (or a prepared B), in the library's current stream."""
        queue = self.adapter.queue(self.home)
        if self._ready.simple:
            try:
                launch = self._mine.launch
            except AttributeError:
                launch = self._mine.launch = self._ready.launcher()
            launch(a, 0, b, 0, c, 0, 1.0, 0.0, queue)
        else:
            kept: list[Any] = []
            like = self.adapter.operand(thing, "a")
            self._ready.run((a, b, c), (0, 0, 0), 1.0, 0.0, queue, lambda n: scratch(self._ready.session, like, n, kept))
        receipt.leave(self.receipt)


_known: dict[Hashable, Known] = {}
_adapters: dict[type, Adapter] = {}


def forget() -> None:
    """Forget all calls and prepared programs: a forked child may not use them."""
    _known.clear()
    _adapters.clear()
    execute.forget()


FORGET.append(forget)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)


def again(a: Any, b: Any, out: Any, precision: str, own: bool, device: Any) -> tuple[Any, Hashable]:
    """Return the result of a call like an earlier one, or MISS; and the key to remember a new one by, None if it cannot be."""
    kind = type(a)
    adapter = _adapters.get(kind)
    if adapter is None or type(b) is not kind or (out is not None and type(out) is not kind):
        return MISS, None
    signature, address = adapter.signature, adapter.address
    at_a, at_b = address(a), address(b)
    try:
        if out is None:
            key = (kind, signature(a), at_a & 15, signature(b), at_b & 15, precision, own, device)
            known = _known.get(key)
            if known is None:
                return MISS, key
            made = adapter.fresh(a, known.shape)
            known.start(a, at_a, at_b, address(made))
            return made, key
        at_c = address(out)
        key = (kind, signature(a), at_a & 15, signature(b), at_b & 15, signature(out), at_c & 15, precision, own, device)  # type: ignore[assignment]
        known = _known.get(key)
    except TypeError:  # a device= that cannot be hashed: the slow path reports the error
        return MISS, None
    if known is None or not known.clear(at_a, at_b, at_c):
        return MISS, key
    known.start(a, at_a, at_b, at_c)
    return out, key


def remember(key: Hashable, known: Known) -> None:
    """Remember a call for ``again``."""
    if len(_known) >= KEPT:
        _known.clear()
    _known[key] = known


def learn(operand: Operand) -> None:
    """Make ``again`` handle arrays of this operand's type from now on, if its library supports that."""
    thing = operand.thing
    if operand.home.kind == "cuda" and operand.adapter.signature(thing) is not None:
        _adapters[type(thing)] = operand.adapter
