"""cuBLAS in fp32: what NVIDIA offers for this on its GPUs, and rung 0 there."""

from toprung.lab.baselines._cublas import CuBLASPeer
from toprung.lab.competitor import Promise

PEER = CuBLASPeer("cublas", "cuBLAS", Promise())
