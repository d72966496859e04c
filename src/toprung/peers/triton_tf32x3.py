"""Triton's ``tf32x3``: three products of TF32 parts."""

from toprung.competitor import Promise
from toprung.peers._triton import MATRIX_UNITS, TritonPeer


def peer() -> TritonPeer:
    """This module's peer."""
    return TritonPeer("triton_tf32x3", "Triton tf32x3", Promise("tf32x3"), "tf32x3", MATRIX_UNITS)
