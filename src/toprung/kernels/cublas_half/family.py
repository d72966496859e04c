"""cuBLAS on two halves of one type, with sums and result in fp32: one product on Tensor Cores, where in flight has scales besides.

Tensor Cores truncate what they add to a sum, and cuBLAS, unlike in flight, may leave sums to them for much of K (``docs/fp32x.md``,
Promote): errors stay below fp32's limit, and are larger than those of our own kernels, and grow with K. What follows was measured
by ``benchmarks/cublas_half.py`` (results/nvidia-h200/cublas-half.json).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from toprung.backends import cublas
from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import KernelConfig, KernelFamily, Launches, NoConfig

RATES = {16: 7.43e14, 8: 1.9e14, 2: 1.2e14}
"""Operations a second of large products by the bytes on which all rows of both operands begin. The first was measured by
``benchmarks/cublas_half.py`` on an H200, the others are of checks (results/*/tune-check-*.json): there few tiles are slower."""

TILE = 128
"""Side of tiles by which products are taken to be few."""

CALL = 17e-6
"""Seconds of a call on the host, the median of what checks have where the device takes less."""

START = 3.2e-6
"""Seconds of a call beyond operations and bytes: those of the smallest product."""

DEEPEST = 8192
"""Largest K: there errors on random signs come near fp32's limit, with float16 within a tenth of it."""


class CuBLASHalf(KernelFamily):
    """``cublasGemmEx``, or its strided batch, on float16 or bfloat16."""

    name = "cublas_half"
    precision = "fp32x"
    own = False
    operand_dtypes = frozenset({"float16", "bfloat16"})
    reproducible = ""

    def supports(self, device: Device, desc: Desc) -> str:
        """Return why cuBLAS is not there, or does not take the product."""
        if not isinstance(desc, GemmDesc):
            return "with a vector memory is the limit"
        if desc.type_a not in self.operand_dtypes or desc.type_a != desc.type_b:
            return "cuBLAS takes two halves of one type"
        if desc.K > DEEPEST:
            return f"K is {desc.K:,}: beyond {DEEPEST:,} errors of sums in Tensor Cores exceed fp32's"
        return cublas.unsupported(device, desc) or ("there is nothing to multiply" if desc.is_empty else "")

    def candidates(self, device: Device, desc: Desc) -> Iterable[NoConfig]:
        """Return the one there is."""
        return [NoConfig()]

    def cost(self, device: Device, desc: Desc, config: KernelConfig) -> float:
        """Return the seconds of operations or bytes, whichever take longer, or of the host's call."""
        assert isinstance(desc, GemmDesc)
        moved = desc.bytes_read + 4 * desc.result.elements
        known = (8 if align == 4 else align for align in (desc.align_a, desc.align_b))  # 4: or more
        begins = ELEMENT_BYTES[desc.type_a] * math.gcd(desc.lda, desc.ldb, desc.stride_a, desc.stride_b, *known)
        size = next(size for size in RATES if begins % size == 0)
        tiles = -(-desc.M // TILE) * -(-desc.N // TILE) * desc.batch
        filled = 1.0 if size == max(RATES) else math.sqrt(min(1.0, tiles / device.compute_units))
        return max(START + max(desc.flops / (RATES[size] * filled), moved / cost_model.MEMORY_RATE), CALL)

    def reason(self, device: Device, desc: Desc, config: KernelConfig) -> str:
        """Return that the model decided."""
        return "both operands are halves of one type, and by the cost model cuBLAS is the faster"

    def compile(self, session: Session, desc: Desc, config: KernelConfig) -> Launches:
        """Return the call of the library."""
        return Launches(lambda: cublas.gemm_ex(session, desc, cublas.COMPUTE_32F))

    def version(self, backend: str) -> str:
        """Return the library's version."""
        return cublas.version()


FAMILY = CuBLASHalf()
