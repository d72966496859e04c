"""Triton's ``bf16x6``: six products of bf16 parts."""

from toprung.competitor import Promise
from toprung.peers._triton import MATRIX_UNITS, TritonPeer


def peer() -> TritonPeer:
    """This module's peer."""
    return TritonPeer("triton_bf16x6", "Triton bf16x6", Promise("bf16x6"), "bf16x6", MATRIX_UNITS)
