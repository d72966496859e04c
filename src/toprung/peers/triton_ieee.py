"""Triton's ``ieee``: IEEE single with fused multiply-adds on the ordinary cores."""

from toprung.competitor import Promise
from toprung.peers._triton import ORDINARY, TritonPeer


def peer() -> TritonPeer:
    """This module's peer."""
    return TritonPeer("triton_ieee", "Triton ieee", Promise("fp32"), "ieee", ORDINARY)
