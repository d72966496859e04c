"""cuBLAS in fp32: what NVIDIA offers for this on its GPUs, and rung 0 there."""

from toprung.competitor import Promise
from toprung.peers._cublas import CuBLASPeer


def peer() -> CuBLASPeer:
    """This module's peer."""
    return CuBLASPeer("cublas", "cuBLAS", Promise())
