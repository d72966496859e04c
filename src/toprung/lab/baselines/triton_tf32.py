"""Triton's ``tf32``: operands cut to TF32."""

from toprung.lab.baselines._triton import MATRIX_UNITS, TritonPeer
from toprung.lab.competitor import Promise

PEER = TritonPeer("triton_tf32", "Triton tf32", Promise("tf32"), "tf32", MATRIX_UNITS)
