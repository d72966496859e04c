"""cuBLAS with operands cut to TF32: the fast one that is not fp32-accurate, for who asks for it."""

from __future__ import annotations

from toprung.backends import cublas
from toprung.device import Device
from toprung.gemm.desc import Desc
from toprung.kernels import cost_model
from toprung.kernels.base import NoConfig
from toprung.kernels.cublas.family import CuBLAS


class CuBLASTF32(CuBLAS):
    """``cublasGemmEx`` in TF32."""

    name = "cublas_tf32"
    precision = "tf32"
    compute = cublas.COMPUTE_TF32

    def supports(self, device: Device, desc: Desc) -> str:
        if reason := cublas.unsupported(device, desc):
            return reason
        return "with a vector memory is the limit, and fp32 as fast as TF32" if desc.is_vector else ""

    def cost(self, device: Device, desc: Desc, config: NoConfig) -> float:
        # the seconds of a call: nothing else computes in TF32 that it could be weighed against
        return float(cost_model.HOST.cublas)

    def reason(self, device: Device, desc: Desc, config: NoConfig) -> str:
        return "asked for: operands cut to 11 bits, NOT as accurate as fp32"


FAMILY = CuBLASTF32()
