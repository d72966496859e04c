"""Epilogue of a product: what becomes of α·A·B on its way into C."""

from __future__ import annotations

from typing import NamedTuple

ADDEND = "addend"
"""Ability of a kernel family to add an array other than C; its others are names of activations."""

ACTIVATIONS = {"relu": 1, "gelu": 2}
"""Functions that the elements of a product may go through, and the kernel's numbers for them."""


class Epilogue(NamedTuple):
    """Description of C = f(α·A·B + β·D): D is an array of its own of C's shape, in which rows and columns may repeat.

    Attributes
    ----------
    addend : True if there is a D; else β is 0
    down, on, stride : elements from one row, column, matrix of D to the next, of any sign; 0 where it repeats
    activation : name of f; empty if it changes nothing
    """

    addend: bool = False
    down: int = 0
    on: int = 0
    stride: int = 0
    activation: str = ""

    @property
    def needs(self) -> frozenset[str]:
        """Abilities that a family must have to compute it: ``ADDEND``, and the activation's name."""
        return frozenset({ADDEND} if self.addend else ()) | frozenset({self.activation} if self.activation else ())
