"""A second operand that was split once."""

from __future__ import annotations

from typing import Any

from toprung.hopper import Prepared as Terms


class Prepared:
    """A B as it was when ``toprung.prepare`` was called: the second operand of any number of products.

    It owns a copy, so that what happens to the source afterwards changes nothing here. Keep it until the products are done.

    Attributes
    ----------
    array : the copy; not to be written
    shape : rows and columns, as the product sees them
    terms : the copy in two fp16 terms, on the device; None where there are none
    precision : what a product takes that asks for ``"auto"``
    why : why there are no terms, empty where there are
    """

    def __init__(self, array: Any, shape: tuple[int, ...], terms: Terms | None, precision: str, why: str) -> None:
        self.array, self.shape, self.terms, self.precision, self.why = array, shape, terms, precision, why

    def asked(self, precision: str) -> str:
        """The precision of a product that asks for this one."""
        return self.precision if precision == "auto" else precision

    def __repr__(self) -> str:
        return f"Prepared({'×'.join(map(str, self.shape))}, {self.precision}{', ' + self.why if self.why else ''})"
