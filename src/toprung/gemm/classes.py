"""Classes of products: what measurements of one product may say about another."""

from __future__ import annotations

from toprung.gemm.desc import Desc

FEW = 16
"""A side no longer than this makes a product skinny."""

SHORTEST = 32
"""K from which on a team of work-items that shares a row of the large operand finds enough to add: its lanes."""

SIZES = {"tiny": 768, "small": 1536}
"""Classes of products by the side of a square one with as many operations."""


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
    """Return what neighbours in a store have in common: ``problem_class``, the layout, and how wide accesses may be.

    ``large NN v444``: A, B and C are read and written four floats at a time; ``vector T v4``: A is.
    """
    return f"{problem_class(desc)} {desc.access_class}"


def is_skinny(desc: Desc) -> bool:
    """Return True for a vector, and where one side is short, the other is not, and a team's lanes find enough to add along K."""
    if desc.is_vector:
        return True
    few, many = sorted((desc.M, desc.N))
    if few == 1:
        return True
    return few <= FEW and many >= 4 * few and (desc.depth >= SHORTEST or not desc.skinny.by_rows)
