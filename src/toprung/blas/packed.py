"""Prepacked second operands, split once for many products."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from toprung.errors import StaleOperand

_numbers = itertools.count(1)


class PackedOperand:
    """A copy of B as it was when ``toprung.prepack`` was called: the second operand of any number of products.

    It owns the copy, so that later writes to the source do not change it; where the source was a PyTorch tensor, products refuse
    the copy then. Keep it until the products are done.

    Attributes
    ----------
    array : the copy; not to be written
    shape : rows and columns, as the product sees them
    terms : the copy in two fp16 terms (hi and lo), on the device; None if there are none
    precision : path of a product that asks for ``"auto"``
    why : reason why there are no terms, empty if there are
    origin, trans : the array that gradients of products go to, if it wants any; True if products take its transpose
    number : number by which a compiled graph names it, as long as it lives
    """

    def __init__(
        self, array: Any, shape: tuple[int, ...], terms: Any, precision: str, why: str, origin: Any = None, trans: bool = False,
        changed: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        self.array, self.shape, self.terms, self.precision, self.why = array, shape, terms, precision, why
        self.origin, self.trans = origin, trans
        self._changed = changed
        self.number = next(_numbers)
        _alive[self.number] = self

    @property
    def source(self) -> Any:
        """Return the array whose gradient a product has to record; the copy where there is none."""
        return self.array if self.origin is None else self.origin

    def check(self) -> None:
        """Raise StaleOperand if the source has been written to since, as far as its library tells."""
        if self._changed is not None and self._changed():
            raise StaleOperand(
                "the tensor that b was prepacked from has been written to since, by an optimiser's step or another operation in "
                "place: prepack it again with toprung.prepack, or prepack a copy of it that stays as it is"
            )

    def asked(self, precision: str) -> str:
        """Return the precision of a product that asks for ``precision``: this operand's own where that is ``"auto"``."""
        return self.precision if precision == "auto" else precision

    def __repr__(self) -> str:
        return f"PackedOperand({'×'.join(map(str, self.shape))}, {self.precision}{', ' + self.why if self.why else ''})"


_alive: WeakValueDictionary[int, PackedOperand] = WeakValueDictionary()


def numbered(number: int) -> PackedOperand | None:
    """Return the prepacked operand of a number; None if it is gone."""
    return _alive.get(number)
