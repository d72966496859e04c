"""fp32 products from two fp16 terms, in NumPy: what the hopper ladder's kernels compute, step by step, and the arithmetic beneath.

x·2^s = hi + lo·2⁻¹¹ with hi and lo in fp16; A·B ≈ hi·hi + 2⁻¹¹·(hi·lo + lo·hi). A matrix unit aligns the products of a step and the
accumulator to the largest of them and truncates, so sums that live long in it drift towards zero: ``matrix_unit`` does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toprung.oracle.problem import F32, F64

TOP = 14
"""The largest element of a scaled row lies in [2^TOP, 2^(TOP + 1)): as high as fp16 reaches without overflow in rounding."""
RESIDUAL = 11
"""The residual is stored times 2^RESIDUAL, where it has the exponents of the leading term."""
STEP = 16
"""Products that the matrix unit adds to its accumulator at once."""
KEPT = 25
"""Bits behind the leading one of the largest term that take part in such a sum; the sum is then cut to fp32."""
CARRIED = 28
"""Powers of two below a row's largest element within which hi and lo together hold 22 bits and more."""
NEAR = 13
"""Elements within 2^-NEAR of a row's largest are its bulk: where the bulks of a row and a column meet, losses do not count."""

LEAST = -149
"""The exponent of the smallest number above 0."""

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Scheme:
    """A way to multiply with two fp16 terms.

    Attributes
    ----------
    interval : steps of hi·hi that stay in the matrix unit before they are added to fp32 registers; 0: all
    cross_interval : the same for the cross terms
    residual : power of two that the residual is multiplied by
    block : columns of K that share a scale; 0: a whole row
    together : cross terms and hi·hi in one accumulator (only with residual 0)
    share : of hi of B that its lo carries besides, to make up for what the unit cuts; elements without a lo are left alone
    """

    interval: int = 2
    cross_interval: int = 0
    residual: int = RESIDUAL
    block: int = 0
    together: bool = False
    share: float = 0.0


def exponents(x: F32) -> I32:
    """For each row, e such that its largest element lies in [2^e, 2^(e+1)); LEAST for a row of zeros."""
    largest = np.max(np.abs(x), axis=-1, initial=0.0).astype(np.float64)
    return np.asarray(np.where(largest > 0, np.frexp(largest)[1] - 1, LEAST), np.int32)


def split(x: F32, e: I32, residual: int = RESIDUAL, share: float = 0.0) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """hi and lo of every row, scaled by 2^(TOP - e)."""
    scaled = np.ldexp(x.astype(np.float64), (TOP - e)[..., None])
    hi = scaled.astype(np.float16)
    lo = scaled - hi.astype(np.float64)
    return hi, np.ldexp(np.where(lo, lo + share * hi.astype(np.float64), 0.0), residual).astype(np.float16)


def truncated(x: F64, unit: F64) -> F64:
    """Towards zero to multiples of ``unit``."""
    return np.trunc(x / unit) * unit


def leading(x: F64) -> NDArray[np.int32]:
    """The exponent of the leading bit; very small for zero."""
    return np.asarray(np.where(x != 0, np.frexp(x)[1] - 1, -1000), np.int32)


def matrix_unit(accumulator: F64, a: F64, b: F64) -> F64:
    """accumulator + a @ b for a step's K, as the unit does it."""
    products = a[:, None, :] * b.T[None, :, :]
    top = np.maximum(leading(accumulator), leading(products).max(axis=-1))
    unit = np.ldexp(1.0, np.maximum(top, -900) - KEPT)
    total = truncated(accumulator, unit) + truncated(products, unit[..., None]).sum(axis=-1)
    return truncated(total, np.ldexp(1.0, np.maximum(leading(total), -900) - 23))


def product(a: F32, b: F32, scheme: Scheme) -> F32:
    """a @ b by a scheme, finite operands."""
    rows, depth = a.shape
    turned = np.ascontiguousarray(b.T)
    block = scheme.block or max(depth, 1)
    main = np.zeros((rows, b.shape[1]), np.float32)
    weight = -scheme.residual
    ea, eb = exponents(a), exponents(turned)
    cross = np.zeros(main.shape)
    outer = np.zeros(main.shape, np.float32)  # cross terms that were promoted
    partial, waiting, crossing = np.zeros(main.shape), 0, 0
    for first in range(0, depth, block):
        if scheme.block:
            pa, pb = a[:, first : first + block], turned[:, first : first + block]
            bea, beb = exponents(pa), exponents(pb)
        else:
            pa, pb, bea, beb = a, turned, ea, eb
        (ah, al), (bh, bl) = split(pa, bea, scheme.residual), split(pb, beb, scheme.residual, scheme.share)
        # a block's own scales are applied where its partial sums are promoted
        factor = np.ldexp(1.0, (bea - ea)[:, None] + (beb - eb)[None, :])
        for k in range(0, pa.shape[1], STEP):
            (xh, xl), (yh, yl) = (
                (h[:, k : k + STEP].astype(np.float64), low[:, k : k + STEP].astype(np.float64)) for h, low in ((ah, al), (bh, bl))
            )
            if scheme.together:
                partial = matrix_unit(matrix_unit(partial, xh, yl.T), xl, yh.T)
            else:
                cross = matrix_unit(matrix_unit(cross, xh, yl.T), xl, yh.T)
                crossing += 1
            partial = matrix_unit(partial, xh, yh.T)
            waiting += 1
            if waiting == scheme.interval:
                main = (main + partial * factor).astype(np.float32)
                partial, waiting = np.zeros(main.shape), 0
            if crossing == scheme.cross_interval:
                outer = (outer + cross * factor).astype(np.float32)
                cross, crossing = np.zeros(main.shape), 0
        if scheme.block or first + block >= depth:
            main = (main + partial * factor).astype(np.float32)
            outer = (outer + cross * factor).astype(np.float32)
            partial, cross, waiting, crossing = np.zeros(main.shape), np.zeros(main.shape), 0, 0
    total = (main.astype(np.float64) + np.ldexp(outer.astype(np.float64), weight)).astype(np.float32)
    with np.errstate(over="ignore"):
        back = np.ldexp(total.astype(np.float64), (ea - TOP)[:, None] + (eb - TOP)[None, :])
        return np.asarray(back, np.float32)


def in_slices(a: F32, b: F32, scheme: Scheme, depth: int) -> F32:
    """a @ b from slices of K that are split and multiplied each by itself, and added in their order."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], depth):
        total += product(a[:, first : first + depth], b[first : first + depth], scheme)
    return total


def chain(a: F32, b: F32) -> F32:
    """a @ b as plain fp32 computes it: one chain of fused multiply-adds for each element."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(a.shape[1]):
            total = (a[:, k, None].astype(np.float64) * b[None, k].astype(np.float64) + total).astype(np.float32)
    return total


def errors(a: F32, b: F32, c: F32) -> tuple[float, float]:
    """Grade ratio and relative Frobenius error."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    reference, magnitude = x @ y, np.abs(x) @ np.abs(y)
    off = np.abs(c - reference)
    norm = float(np.sqrt(np.sum(reference**2)))
    return float(np.max(off / np.maximum(2.0**-24 * magnitude, 2.0**-150))), float(np.sqrt(np.sum(off**2))) / (norm or 1.0)


def statistics(x: F32) -> tuple[I32, I32, I32]:
    """Return facts of each row for the guard: its exponent, how many elements are too small to carry, how many are not its bulk."""
    e = exponents(x)
    size = np.abs(x.astype(np.float64))
    lost = (size > 0) & (size < np.ldexp(1.0, e - CARRIED)[:, None])
    thin = (size < np.ldexp(1.0, e - NEAR)[:, None]) & size.any(axis=-1, keepdims=True)  # a row of zeros loses nothing
    return e, lost.sum(axis=-1).astype(np.int32), thin.sum(axis=-1).astype(np.int32)


def refused(a: F32, b: F32) -> bool:
    """Return True if the guard sends a product, taken as one tile, to plain fp32."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return True
    (ea, lost_a, thin_a), (eb, lost_b, thin_b) = statistics(a), statistics(np.ascontiguousarray(b.T))
    depth = a.shape[1]
    if int(ea.max()) + int(eb.max()) + 2 + int(np.ceil(np.log2(max(depth, 1)))) >= 127:
        return True
    return bool((lost_a.max() or lost_b.max()) and 2 * (int(thin_a.max()) + int(thin_b.max())) > depth)
