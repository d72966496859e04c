"""toprung: a laboratory and library for single-precision matrix multiplication on GPUs."""

from toprung.backends import devices
from toprung.device import Device

__all__ = ["Device", "devices"]
