"""Triton's ``tf32x3``: three products of TF32 parts."""

from toprung.lab.baselines._triton import MATRIX_UNITS, TritonPeer
from toprung.lab.competitor import Promise

PEER = TritonPeer("triton_tf32x3", "Triton tf32x3", Promise("tf32x3"), "tf32x3", MATRIX_UNITS)
