"""cuBLAS with fp16 operands and fp32 result: the matrix units' rate, for whoever has narrow data to begin with."""

from toprung.backends.cublas import R_16F
from toprung.lab.baselines._cublas import CuBLASPeer
from toprung.lab.competitor import Promise


def peer() -> CuBLASPeer:
    """This module's peer."""
    note = "operands rounded to fp16 beforehand; that is not timed"
    return CuBLASPeer("cublas_fp16", "cuBLAS fp16 → fp32", Promise("fp16", note=note), operands=R_16F)
