"""cuBLAS on two halves of one type, with sums and result in fp32: one product on Tensor Cores, where in flight has scales besides.

Tensor Cores truncate what they add to a sum, and cuBLAS, unlike in flight, may leave sums to them for much of K (``docs/fp32x.md``,
Promote): errors stay below fp32's limit, and are larger than those of our own kernels, and grow with K
(``benchmarks/candidates.py --shapes halves``, results/nvidia-h200/cublas-half.json).
"""

from __future__ import annotations

import math

from toprung.backends import cublas
from toprung.device import Device
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import NoConfig, OwnDesc
from toprung.kernels.cublas.family import CuBLAS

RATES = {16: 8.5e14, 8: 2.3e14, 2: 1.4e14}
"""Operations a second of whole tiles, by the bytes on which all rows of operands and result would begin if all were halves."""

TILE, EACH = 64, 0.76e-6
"""Side of the tiles that operations are counted in, and seconds of an SM for each."""

FILLED = 128
"""Side of tiles by which products whose rows begin anywhere are taken to be few."""

CALL = 17e-6
"""Seconds of a call on the host, the median of what checks have where the device takes less."""

START = 4e-6
"""Seconds of a call beyond operations and bytes. With ``RATES`` and ``EACH`` fitted to 113 times in nine checks of an H200 and an
H100 (results/*/tune-check-*.json), none held out: median error 13 %."""

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
        size = next(size for size in RATES if begins % size == 0)
        few = min(1.0, _tiles(desc, FILLED) / device.compute_units)
        rate = RATES[size] * (1.0 if size == max(RATES) else math.sqrt(few))
        tiles = _tiles(desc, TILE)
        computing = 2.0 * tiles * TILE * TILE * desc.K / rate + EACH * tiles / device.compute_units
        return float(max(START + max(computing, moved / cost_model.MEMORY_RATE), CALL))

    def reason(self, device: Device, desc: Desc, config: NoConfig) -> str:
        return "both operands are halves of one type, and by the cost model cuBLAS is the faster"


def _tiles(desc: GemmDesc, side: int) -> int:
    """Return the tiles of C, squares with that side."""
    return -(-desc.M // side) * -(-desc.N // side) * desc.batch


FAMILY = CuBLASHalf()
