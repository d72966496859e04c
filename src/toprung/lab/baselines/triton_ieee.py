"""Triton's ``ieee``: IEEE single with fused multiply-adds on the ordinary cores."""

from toprung.lab.baselines._triton import ORDINARY, TritonPeer
from toprung.lab.competitor import Promise

PEER = TritonPeer("triton_ieee", "Triton ieee", Promise("fp32"), "ieee", ORDINARY)
