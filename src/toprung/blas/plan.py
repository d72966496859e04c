"""``toprung.plan``: a product whose kernel is selected once and called often."""

from __future__ import annotations

from typing import Any

from toprung.arrays.base import HOST
from toprung.blas import calls as warm
from toprung.blas import receipt, routines
from toprung.blas.packed import Prepared
from toprung.blas.product import How, planned, with_terms
from toprung.blas.receipt import Receipt
from toprung.device import Device
from toprung.errors import StalePlan
from toprung.gemm.lowering import aligned


class Plan:
    """A product of two operands like those it was made from: call it with arrays of the same kind, shape, strides and device.

    Attributes
    ----------
    shape : shape of the result
    receipt : receipt of each call; None for host arrays before the first call
    """

    def __init__(self, a: Any, b: Any, out: Any, precision: str, own: bool, device: Device | str | None) -> None:
        self._options: dict[str, Any] = {"precision": precision, "own": own, "device": device}
        self._prepared = b if isinstance(b, Prepared) else None
        self._terms: Any = None
        if self._prepared is not None:
            precision, b = self._prepared.asked(precision), self._prepared.array
        first, second, _, result, views, shape = routines.resolved(a, b, out, How("matmul", precision, own, device))
        self.shape = shape
        self._kinds = (type(a), type(b))
        self._text = f"{type(a).__name__} {routines.sizes(first.shape)} · {type(b).__name__} {routines.sizes(second.shape)}"
        self._facts = (first.shape, first.strides, second.shape, second.strides, result.shape, result.strides)
        self._known: warm.Known | None = None
        self.receipt: Receipt | None = None
        adapter = first.adapter
        if first.home.kind == HOST:
            planned(*views, How("matmul", precision, own, device))
        else:
            ready, self.receipt = routines.readied(views, How("matmul", precision, own, device))
            if self._prepared is not None and ready.takes(self._prepared.terms):
                self._terms, self.receipt = self._prepared.terms, with_terms(self.receipt)
            if (
                first.home.kind == "cuda"
                and adapter is second.adapter is result.adapter
                and adapter.signature(first.thing) is not None
            ):
                self._known = warm.Known(ready, views, first, shape, self.receipt)
                self._signatures = tuple(adapter.signature(o.thing) for o in (first, second, result))
                self._least = tuple(aligned(o.address) for o in (first, second, result))
                self._signature, self._address, self._fresh = adapter.signature, adapter.address, adapter.fresh

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the product of operands like the plan's, in ``out`` or a new array of ``a``'s kind.

        Raises
        ------
        StalePlan
            the operands have another kind, shape, layout or place than the plan's
        """
        known, given = self._known, b
        if self._prepared is not None:
            if b is not self._prepared:
                raise self._stale(a, b, out)
            b = self._prepared.array
        if known is None:
            self._check(a, b, out)
            product = routines.matmul(a, given, out, **self._options)
            self.receipt = receipt.last_receipt()
            return product
        signature, address = self._signature, self._address
        like_a, like_b, like_c = self._signatures
        try:
            if signature(a) != like_a or signature(b) != like_b:
                raise self._stale(a, b, out)
            target = self._fresh(a, self.shape) if out is None else out
            if out is not None and signature(out) != like_c:
                raise self._stale(a, b, out)
        except AttributeError:
            raise self._stale(a, b, out) from None
        at_a, at_b, at_c = address(a), address(b), address(target)
        least_a, least_b, least_c = self._least
        if (
            at_a % (4 * least_a)
            or at_b % (4 * least_b)
            or at_c % (4 * least_c)
            or (out is not None and not known.clear(at_a, at_b, at_c))
        ):
            return routines.matmul(
                a, given, target, **self._options
            )  # less aligned than planned, or overlapping: matmul handles both
        known.start(a, at_a, at_b if self._terms is None else self._terms, at_c)
        return target

    def _check(self, a: Any, b: Any, out: Any) -> None:
        first, second = (routines.strict(x, name) for x, name in ((a, "a"), (b, "b")))
        target = routines.output(out, first)
        facts = (
            first.shape,
            first.strides,
            second.shape,
            second.strides,
            *((target.shape, target.strides) if target else self._facts[4:]),
        )
        if facts != self._facts or (type(a), type(b)) != self._kinds:
            raise self._stale(a, b, out)

    def _stale(self, a: Any, b: Any, out: Any) -> StalePlan:
        given = " · ".join(f"{type(x).__name__} {routines.sizes(tuple(getattr(x, 'shape', ())))}" for x in (a, b))
        into = "" if out is None else f" into {type(out).__name__} {routines.sizes(tuple(getattr(out, 'shape', ())))}"
        return StalePlan(
            f"this plan is for {self._text} → {routines.sizes(self.shape)} and their strides, dtype and device, "
            f"and was called with {given}{into}: make another plan, or use matmul, which looks each time"
        )

    def __str__(self) -> str:
        return f"plan for {self._text}\n{self.receipt or 'decided at the first call: the arrays are on the host'}"


def plan(
    a: Any, b: Any, out: Any = None, *, precision: str = "auto", own: bool = False, device: Device | str | None = None
) -> Plan:  # fmt: skip
    """Decide once how ``matmul(a, b, out)`` is computed. Nothing is computed yet.

    Parameters
    ----------
    a, b, out, precision, own, device : as for ``matmul``. Of the arrays only kind, shape, strides, dtype, place and alignment count

    Returns
    -------
    A callable ``plan(a, b, out=None)`` for operands of the same kinds, shapes, strides and place. On CUDA a call does not
    allocate (with ``out=``), wait or ask anything of the driver but the launch, and may be captured in a CUDA graph.

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
