"""cuBLAS in TF32: fp32 operands cut to 11 bits inside the matrix units."""

from toprung.backends.cublas import COMPUTE_TF32
from toprung.lab.baselines._cublas import CuBLASPeer
from toprung.lab.competitor import Promise

PEER = CuBLASPeer("cublas_tf32", "cuBLAS TF32", Promise("tf32"), COMPUTE_TF32)
