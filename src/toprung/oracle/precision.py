"""Limits of error for each precision path: the one table that results are held to.

The unit is the grade ratio of ``toprung.oracle.check``: multiples of u = 2⁻²⁴ relative to Σ|a||b|. On data with random signs the
errors of rounded operands partly cancel, and the ratio falls with √K; fp32 stays below 16 there at any K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from toprung.errors import named

UNEVEN = 2.0**-26
"""Bias of rounding to nearest where results fill the steps of fp32 unevenly, as 0.7 times a number ends near tenths of a step."""


@dataclass(frozen=True)
class Precision:
    """A way to compute a product of fp32 matrices.

    Attributes
    ----------
    loss : grade ratio that rounding the operands may cost one product, beyond what fp32 arithmetic costs
    bias : bias of sums of one sign (``toprung.oracle.bias``) that truncation leaves in our own paths; None for others
    accurate : whether it is meant to be as accurate as fp32, in the norm at least
    why : where ``loss`` comes from
    """

    name: str
    loss: float
    accurate: bool
    why: str
    bias: float | None = None

    def bias_limit(self, depth: int, alpha: float = 1.0, near_one: int = 0) -> float:
        """Return the largest bias accepted for ``alpha`` times sums of ``depth`` terms; ``near_one`` operands are of 1 to 1.001.

        A chain of K additions rounds terms below u·K of their mean to zero, about that share of them: it loses (K·u)² at most.
        If both are near one, 32 products hi·hi add up to 32 + n·2⁻¹⁰ + m·2⁻²⁰, m about 8. Once the total is above 2⁸, fp32
        drops m·2⁻²⁰, a share of 2⁻²²; once it is above 2¹⁴, ties of n·2⁻¹⁰ are rounded up, by 2⁻¹¹ on average, a share of 2⁻¹⁶.
        """
        if self.bias is None:
            return UNEVEN + self.loss * 2.0**-24 + (depth * 2.0**-24) ** 2
        uneven = UNEVEN if near_one or math.frexp(abs(alpha))[0] != 0.5 else 0.0
        dropped, ties = (max(0.0, 1 - begin / max(depth, 1)) if near_one == 2 else 0.0 for begin in (2**8, 2**14))
        return self.bias + uneven + 2.0**-22 * dropped + 2.0**-16 * ties

    def limit(self, depth: int, signed: float | None) -> float:
        """Largest grade ratio accepted for sums of ``depth`` terms.

        ``signed``: what fp32 stays under on data with random signs, or None for other data. Four times 1/√K of the worst case
        covers the largest of millions of elements: TF32 and fp16 operands were seen to give 385 at K = 4096, bf16 3281.
        """
        fp32 = depth + 2.0
        if signed is None:
            return fp32 + self.loss
        return min(fp32, signed) + self.loss * min(1.0, 4 / math.sqrt(max(depth, 1)))


_ALL = (
    Precision("fp32", 0, True, "IEEE single with fused multiply-adds: the yardstick"),
    Precision("fp32x", 0, True, "matrix units, promised to be as accurate as fp32", 2.5e-8),
    Precision(
        "fp32x-strassen", 16, True, "fp32x of sums of quarters: an element has the errors of four, those beside it included", 2.5e-8
    ),
    Precision("bf16x6", 4, True, "three bf16 parts hold all 24 bits; of the nine products three of 2⁻²⁴ each are left out"),
    Precision("tf32x3", 8, True, "two TF32 parts hold 22 of an operand's 24 bits, and the product of the small parts is left out"),
    Precision("fp16", 2.0**14, False, "each operand rounded to 11 bits: 2 · 2⁻¹¹ relative; overflows past 65504"),
    Precision("tf32", 2.0**15, False, "each operand cut to 11 bits, by truncation on some paths: 2 · 2⁻¹⁰ relative"),
    Precision("bf16", 2.0**17, False, "each operand rounded to 8 bits: 2 · 2⁻⁸ relative"),
)

PRECISIONS: Mapping[str, Precision] = MappingProxyType({p.name: p for p in _ALL})
"""Every precision path by name."""


def precision(name: str) -> Precision:
    """A precision path by name, or UnknownName."""
    return named("precision", name, PRECISIONS)
