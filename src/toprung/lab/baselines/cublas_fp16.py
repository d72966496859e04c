"""cuBLAS with fp16 operands and fp32 result: the matrix units' rate, for whoever has narrow data to begin with."""

from toprung.backends.cublas import R_16F
from toprung.lab.baselines._cublas import CuBLASPeer
from toprung.lab.competitor import Promise

NARROWED = Promise("fp16", note="operands rounded to fp16 beforehand; that is not timed")
PEER = CuBLASPeer("cublas_fp16", "cuBLAS fp16 → fp32", NARROWED, operands=R_16F)
