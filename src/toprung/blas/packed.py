"""Prepacked second operands, split once for many products."""

from __future__ import annotations

from typing import Any


class PackedOperand:
    """A copy of B as it was when ``toprung.prepack`` was called: the second operand of any number of products.

    It owns the copy, so that later writes to the source do not change it. Keep it until the products are done.

    Attributes
    ----------
    array : the copy; not to be written
    shape : rows and columns, as the product sees them
    terms : the copy in two fp16 terms (hi and lo), on the device; None if there are none
    precision : path of a product that asks for ``"auto"``
    why : reason why there are no terms, empty if there are
    """

    def __init__(self, array: Any, shape: tuple[int, ...], terms: Any, precision: str, why: str) -> None:
        self.array, self.shape, self.terms, self.precision, self.why = array, shape, terms, precision, why

    def asked(self, precision: str) -> str:
        """Return the precision of a product that asks for ``precision``: this operand's own where that is ``"auto"``."""
        return self.precision if precision == "auto" else precision

    def __repr__(self) -> str:
        return f"PackedOperand({'×'.join(map(str, self.shape))}, {self.precision}{', ' + self.why if self.why else ''})"
