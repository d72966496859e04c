"""Sizes of a level of Strassen: halves, pieces of larger products, bytes of the workspace."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from toprung.backends.plan import whole
from toprung.device import Device
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.sizes import supported as fp32x_supported
from toprung.kernels.hopper_fp32x.sizes import terms_bytes
from toprung.kernels.hopper_strassen.form import PRODUCTS

SMALLEST = 8192
"""Least M, N and K: below, what the splitting pass and the last launch take more is what a product less saves."""
LONGEST = 1 << 14
"""Most M, N and K of a piece: its workspace grows with the square, and half a row must fit a block's registers."""
UNIT = 32
"""Halves are multiples of this many rows, columns or elements of K."""


def half(n: int) -> int:
    """Return the first half of a side; the second is as long, with zeros behind the operand's end."""
    return UNIT * ceil(n, 2 * UNIT)


def supported(device: Device, desc: GemmDesc) -> str:
    """Return why a product cannot be, or should not be, computed this way, as a sentence; empty where it can."""
    if reason := fp32x_supported(device, desc):
        return reason
    if desc.batch > 1:
        return "Strassen's form takes one product at a time, not a batch"
    if min(desc.M, desc.N, desc.K) < SMALLEST:
        return f"Strassen's form gains from {SMALLEST} rows, columns and elements of K on, not at {desc.M}×{desc.N}×{desc.K}"
    return ""


@dataclass(frozen=True)
class Piece:
    """A product that is computed at a time: rows from m, columns from n, and K from k on, which is added to C where k > 0."""

    m: int
    rows: int
    n: int
    cols: int
    k: int
    depth: int


def pieces(desc: GemmDesc, longest: int = LONGEST) -> list[Piece]:
    """Return the pieces of a product, each side at most ``longest``; those of one place in C follow each other."""
    return [
        Piece(m, rows, n, cols, k, depth)
        for (m, rows), (n, cols), (k, depth) in itertools.product(*(_cut(side, longest) for side in (desc.M, desc.N, desc.K)))
    ]


def _cut(n: int, longest: int) -> list[tuple[int, int]]:
    """Return beginnings and lengths of equal parts, whole ``UNIT``s but the last."""
    part = UNIT * ceil(ceil(n, ceil(n, longest)), UNIT)
    return [(begin, min(part, n - begin)) for begin in range(0, n, part)]


def parts_bytes(p: Piece) -> tuple[int, int, int]:
    """Return the bytes of the workspace for A's terms, B's, and the seven products."""
    m, n, k = half(p.rows), half(p.cols), half(p.depth)
    return terms_bytes(PRODUCTS * m, k), terms_bytes(PRODUCTS * n, k), whole(4 * PRODUCTS * m * n)


def workspace_bytes(desc: GemmDesc, longest: int = LONGEST) -> int:
    """Return the scratch memory of a product."""
    return max((sum(parts_bytes(p)) for p in pieces(desc, longest)), default=0) if desc.M and desc.N else 0
