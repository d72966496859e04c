"""Problem classes: groups of products within which a measurement of one may stand for another."""

from __future__ import annotations

from toprung.gemm.desc import Desc

FEW = 16
"""Longest side, in elements, that makes a product skinny."""

SHORTEST = 32
"""Smallest K that gives each lane of a team a term to add: a team of work-items shares a row of the large operand."""

SIZES = {"tiny": 768, "small": 1536}
"""Size classes, each with the side, in elements, of the square product with as many operations at which the class ends."""


def problem_class(desc: Desc) -> str:
    """Return ``vector``, ``skinny``, ``batched``, ``deep``, ``shallow``, ``tiny``, ``small`` or ``large``."""
    if desc.is_vector or min(desc.M, desc.N) == 1:
        return "vector"
    if min(desc.M, desc.N) <= FEW:
        return "skinny"
    if desc.batch > 1:
        return "batched"
    if desc.depth >= 16 * max(desc.M, desc.N):
        return "deep"
    if 16 * desc.depth <= min(desc.M, desc.N):
        return "shallow"
    return next((name for name, side in SIZES.items() if desc.flops < 2 * side**3), "large")


def class_of(desc: Desc) -> str:
    """Return the key that neighbours in a store share: ``problem_class``, layout, and widths of accesses in floats.

    ``large NN v444``: A, B and C are read and written four floats at a time; ``vector T v4``: A is.
    """
    return f"{problem_class(desc)} {desc.access_class}"


def is_skinny(desc: Desc) -> bool:
    """Return True for a vector, and if one side is short, the other twice as long, and K has a term for each lane of a team."""
    if desc.is_vector:
        return True
    few, many = sorted((desc.M, desc.N))
    if few == 1:
        return True
    return few <= FEW and many >= 2 * few and (desc.depth >= SHORTEST or not desc.skinny.by_rows)
