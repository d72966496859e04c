"""Cost model of a level of Strassen: predicted seconds, from fp32x's own constants and the bytes of the other launches."""

from __future__ import annotations

from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.cost import ACROSS_RATE, LAUNCH, REDUCE_RATE, SPLIT_RATE, product_time
from toprung.kernels.hopper_strassen.form import PRODUCTS
from toprung.kernels.hopper_strassen.sizes import half, pieces

QUARTERS = 4
"""Quarters of an operand that the splitting pass fetches from memory: what it reads again comes from L2."""


def seconds(desc: GemmDesc, units: int) -> float:
    """Return the predicted seconds of all launches."""
    total = 0.0
    for p in pieces(desc):
        m, n, k = half(p.rows), half(p.cols), half(p.depth)
        for rows, across in ((m, desc.trans_a), (n, not desc.trans_b)):
            total += 4 * rows * k * (QUARTERS + PRODUCTS) / (ACROSS_RATE if across else SPLIT_RATE)
        seven = GemmDesc(m, n, k, batch=PRODUCTS, stride_a=m * k, stride_b=k * n, stride_c=m * n)
        total += product_time(seven, Fp32xConfig(), units)
        total += 4 * m * n * (PRODUCTS + QUARTERS) / REDUCE_RATE + 4 * LAUNCH
    return total
