"""Triton's ``ieee``: IEEE single with fused multiply-adds on the ordinary cores."""

from toprung.lab.baselines._triton import ORDINARY, TritonPeer
from toprung.lab.competitor import Promise


def peer() -> TritonPeer:
    """This module's peer."""
    return TritonPeer("triton_ieee", "Triton ieee", Promise("fp32"), "ieee", ORDINARY)
