"""cuBLAS on two halves of one type, with sums and result in fp32: one product on Tensor Cores, where in flight has scales besides.

Tensor Cores truncate what they add to a sum, and cuBLAS, unlike in flight, may leave sums to them for much of K (``docs/fp32x.md``,
Promote): errors stay below fp32's limit, and are larger than those of our own kernels, and grow with K
(``benchmarks/candidates.py --shapes halves``, results/nvidia-h200/cublas-half.json).
"""

from __future__ import annotations

import math
from types import SimpleNamespace

from toprung.backends import cublas
from toprung.device import Device
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import NoConfig, OwnDesc
from toprung.kernels.cublas.family import CuBLAS

MODEL = SimpleNamespace(**cost_model.fitted("cublas")["half"])
"""Numbers of the model of cuBLAS on halves; ``means`` in ``models/cublas.json`` explains each."""

DEEPEST = 8192
"""Largest K: there errors on random signs come near fp32's limit, with float16 within a tenth of it."""


class CuBLASHalf(CuBLAS):
    """``cublasGemmEx``, or its strided batch, on float16 or bfloat16."""

    name = "cublas_half"
    precision = "fp32x"
    operand_dtypes = frozenset({"float16", "bfloat16"})

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector:
            return "with a vector memory is the limit"
        if desc.type_a not in self.operand_dtypes or desc.type_a != desc.type_b:
            return "cuBLAS takes two halves of one type"
        if desc.K > DEEPEST:
            return f"K is {desc.K:,}: beyond {DEEPEST:,} errors of sums in Tensor Cores exceed fp32's"
        return cublas.unsupported(device, desc) or ("there is nothing to multiply" if desc.is_empty else "")

    def cost(self, device: Device, desc: OwnDesc, config: NoConfig) -> float:
        moved = desc.bytes_read + 4 * desc.result.elements
        known = (8 if align == 4 else align for align in (desc.align_a, desc.align_b))  # 4: or more
        strides = desc.stride_a, desc.stride_b
        begins = ELEMENT_BYTES[desc.type_a] * math.gcd(desc.lda, desc.ldb, desc.ldc, *strides, *known)
        p, size = MODEL, next(size for size in MODEL.rates if begins % int(size) == 0)
        few = min(1.0, _tiles(desc, p.filled) / device.compute_units)
        rate = p.rates[size] * (1.0 if size == "16" else math.sqrt(few))
        tiles = _tiles(desc, p.tile)
        computing = 2.0 * tiles * p.tile * p.tile * desc.K / rate + p.each * tiles / device.compute_units
        reading = 0.0 if desc.beta_zero else 4 * desc.result.elements / p.read_rate
        return float(max(p.start + max(computing, moved / cost_model.MEMORY_RATE) + reading, p.call))

    def reason(self, device: Device, desc: Desc, config: NoConfig) -> str:
        return "both operands are halves of one type, and by the cost model cuBLAS is the faster"


def _tiles(desc: GemmDesc, side: int) -> int:
    """Return the tiles of C, squares with that side."""
    return -(-desc.M // side) * -(-desc.N // side) * desc.batch


FAMILY = CuBLASHalf()
