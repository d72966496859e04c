"""cuBLAS on two halves of one type, with sums and result in fp32: one product on Tensor Cores, where in flight has scales besides.

Tensor Cores truncate what they add to a sum, and cuBLAS, unlike in flight, may leave sums to them for much of K (``docs/fp32x.md``,
Promote): errors stay below fp32's limit, and are larger than those of our own kernels, and grow with K. What follows was measured
by ``benchmarks/cublas_half.py`` (results/nvidia-h200/cublas-half.json).
"""

from __future__ import annotations

from collections.abc import Iterable

from toprung.backends import cublas
from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import KernelConfig, KernelFamily, Launches, NoConfig

RATE = 7.43e14
"""Operations a second of large products on an H200."""

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
        return max(START + max(desc.flops / RATE, moved / cost_model.MEMORY_RATE), cost_model.HOST.cublas)

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
