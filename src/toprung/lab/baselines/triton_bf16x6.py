"""Triton's ``bf16x6``: six products of bf16 parts."""

from toprung.lab.baselines._triton import MATRIX_UNITS, TritonPeer
from toprung.lab.competitor import Promise

PEER = TritonPeer("triton_bf16x6", "Triton bf16x6", Promise("bf16x6"), "bf16x6", MATRIX_UNITS)
