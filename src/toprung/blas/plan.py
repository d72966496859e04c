"""``toprung.plan``: a product whose kernel is selected once and called often."""

from __future__ import annotations

from typing import Any, NoReturn

from toprung import forks
from toprung.blas import calls, routines
from toprung.blas.operands import How, arranged, finished, sizes, strict, taken
from toprung.blas.packed import PackedOperand
from toprung.blas.product import OnDevice, decided
from toprung.blas.receipt import Receipt
from toprung.device import Device
from toprung.dispatch.recent import Recent
from toprung.errors import StalePlan, Unsupported
from toprung.gemm.layout import aligned, dense


class Plan:
    """A product of two operands like those it was made from: call it with arrays of the same kind, shape, strides and device.

    Attributes
    ----------
    shape : shape of the result
    """

    def __init__(self, a: Any, b: Any, out: Any, precision: str, own: bool, device: Device | str | None) -> None:
        self._options: dict[str, Any] = {"precision": precision, "own": own, "device": device}
        self._packed = b if isinstance(b, PackedOperand) else None
        if self._packed is not None:
            self._packed.check()
            strict(self._packed.source, "b")  # a gradient that would be lost
            precision, b = self._packed.asked(precision), self._packed.array
        self._how = How("matmul", precision, own, device)
        given = arranged(*taken(a, b, out), out, self._how)
        self._call = call = decided(1.0, given.a, given.b, 0.0, given.c, self._how)
        self.shape = call.shape = given.shape
        terms = self._packed.terms if self._packed else None
        self._terms = None
        if terms is not None and isinstance(call, OnDevice) and call.executable.accepts(terms):
            self._terms = terms
            call.take_split_beforehand(terms)
        first, second, result = given.first, given.second, given.result
        self._makes = result.shape == given.shape and dense(result.shape, result.strides)  # the call can write a new array
        self._kinds, self._generation = (type(a), type(b)), forks.generation
        self._text = f"{type(a).__name__} {sizes(first.shape)} · {type(b).__name__} {sizes(second.shape)}"
        self._facts = tuple((o.shape, o.strides) for o in (first, second, result))
        self._least = tuple(4 * aligned(o.address) for o in (first, second, result))
        self._signatures = calls.signatures(call, given)
        calls.know((first, second, result))
        self._is_native = self._signatures is not None and calls.prepare(call, given)
        self._known: Recent[Any] = Recent(64)  # the call by keys of operands that were looked at
        adapter = first.adapter
        self._signature, self._address = adapter.signature, adapter.address

    def __copy__(self, *_: object) -> Plan:
        return self  # nothing in it changes

    __deepcopy__ = __copy__

    def __reduce__(self) -> NoReturn:
        raise Unsupported("a plan holds kernels of its process: pickle what it was made of, and call toprung.plan where it is used")

    @property
    def receipt(self) -> Receipt | None:
        """Receipt of each call; None before the first one where operands must be moved to a device in panels."""
        return self._call.receipt()

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the product of operands like the plan's, in ``out`` or a new array of ``a``'s kind.

        Raises
        ------
        StalePlan
            the operands have another kind, shape, layout or place than the plan's
        """
        call, given = self._call, b
        if self._packed is not None:
            if b is not self._packed:
                raise self._stale(a, b, out)
            b.check()
            b = self._packed.array
        if self._generation != forks.generation:  # in a forked child, which may use no device that its parent opened
            return routines.matmul(a, given, out, **self._options)
        key = None
        if self._is_native:
            found, key = calls.again(a, b, out, *self._options.values(), self._known)
            if found is not calls.MISS:
                return found
        if self._signatures is None or (call.depends and not call.is_valid()):
            return self._looked_at(a, b, given, out)
        signature, address = self._signature, self._address
        like_a, like_b, like_c = self._signatures
        try:
            now_a, now_b, now_c = signature(a), signature(b), like_c if out is None else signature(out, writable=True)
        except AttributeError:
            raise self._stale(a, b, out) from None
        if now_a != like_a or now_b != like_b or now_c != like_c:
            if None in (now_a, now_b, now_c):  # the operands themselves say what is wrong with them
                return self._looked_at(a, b, given, out)
            raise self._stale(a, b, out)
        at_a, at_b = address(a), address(b)
        least_a, least_b, least_c = self._least
        if out is None and self._makes and not (at_a % least_a or at_b % least_b):
            if key is not None:
                self._known.keep(key, call)
            return call.product(a, b, at_a, at_b)
        if out is not None and not (at_a % least_a or at_b % least_b or (at_c := address(out)) % least_c):
            adapter = call.adapter
            if call.is_clear(at_a, at_b, at_c) or (adapter.has_memory_objects and calls.elsewhere(adapter, a, b, out)):
                if key is not None:
                    self._known.keep(key, call)
                call.start(a, b, out, at_a, at_b, at_c)
                return out
        # it handles less aligned operands and another layout of the result, and names what overlaps
        return routines.matmul(a, given, out, **self._options)

    def _looked_at(self, a: Any, b: Any, given: Any, out: Any) -> Any:
        """Return the product of operands whose library has no signature for them, or raise StalePlan."""
        first, second, target = taken(a, b, out)
        facts = tuple((o.shape, o.strides) for o in (first, second))
        if (type(a), type(b)) != self._kinds or facts != self._facts[:2]:
            raise self._stale(a, given, out)
        if target is not None and (target.shape, target.strides) != self._facts[2]:
            raise self._stale(a, given, out)
        call = self._call
        if call.home != first.home or self._signatures is not None or not (out is not None or self._makes):
            return routines.matmul(a, given, out, **self._options)
        ready = arranged(first, second, target, out, self._how)
        if any(o.address % n for o, n in zip((first, second, ready.result), self._least, strict=True)):
            return routines.matmul(a, given, ready.made, **self._options)
        call.run(1.0, ready.a, ready.b, 0.0, ready.c, self._terms)
        return finished(ready, out)

    def _stale(self, a: Any, b: Any, out: Any) -> StalePlan:
        given = " · ".join(f"{type(x).__name__} {sizes(tuple(getattr(x, 'shape', ())))}" for x in (a, b))
        into = "" if out is None else f" into {type(out).__name__} {sizes(tuple(getattr(out, 'shape', ())))}"
        return StalePlan(
            f"this plan is for {self._text} → {sizes(self.shape)} and their strides, dtype and device, "
            f"and was called with {given}{into}: make another plan, or use matmul, which looks each time"
        )

    def __str__(self) -> str:
        return f"plan for {self._text}\n{self.receipt or 'through a device: its first call says what is moved'}"


def plan(
    a: Any, b: Any, out: Any = None, *, precision: str = "auto", own: bool = False, device: Device | str | None = None
) -> Plan:  # fmt: skip
    """Decide once how ``matmul(a, b, out)`` is computed. Nothing is computed yet.

    Parameters
    ----------
    a, b, out, precision, own, device : as for ``matmul``. Of the arrays only kind, shape, strides, dtype, place and alignment count

    Returns
    -------
    A callable ``plan(a, b, out=None)`` for operands of the same kinds, shapes, strides and place. On CUDA a call with ``out=``
    does not wait or ask anything of the driver but the launch (scratch memory comes from the array library's pool), and may be
    captured in a CUDA graph.

    Raises
    ------
    StalePlan
        a later call has operands of another kind, shape, layout or place; ``plan`` itself raises the errors of ``matmul``

    Examples
    --------
    >>> import numpy as np, toprung
    >>> a, b = np.ones((64, 32), np.float32), np.ones((32, 48), np.float32)
    >>> product = toprung.plan(a, b)
    >>> product(a, b).shape
    (64, 48)
    """
    return Plan(a, b, out, precision, own, device)
