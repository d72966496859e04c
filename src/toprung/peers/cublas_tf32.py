"""cuBLAS in TF32: fp32 operands cut to 11 bits inside the matrix units."""

from toprung.backends.cublas import COMPUTE_TF32
from toprung.competitor import Promise
from toprung.peers._cublas import CuBLASPeer


def peer() -> CuBLASPeer:
    """This module's peer."""
    return CuBLASPeer("cublas_tf32", "cuBLAS TF32", Promise("tf32"), COMPUTE_TF32)
