"""The host's BLAS, through NumPy: for arrays in the host's memory, what was there already."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.device import Device, cores
from toprung.errors import Unsupported
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import HostFamily, Launches, NoConfig, OwnDesc

CLOCK, FLOPS_PER_CYCLE = 2.5e9, 32
"""Cycles a second of a core, and its operations in each: two AVX2 multiply-adds."""


class HostBLAS(HostFamily[NoConfig]):
    """NumPy's product of host arrays."""

    name = "numpy"
    own = False
    release = staticmethod(lambda: f"numpy {np.__version__}")
    reproducible = ""

    def supports(self, device: Device, desc: OwnDesc) -> str:
        # empty: it takes every product of host arrays, wherever a device would be
        return ""

    def cost(self, device: Device, desc: OwnDesc, config: NoConfig) -> float:
        return self.host_seconds(desc.flops)

    def host_seconds(self, flops: int) -> float:
        return flops / (FLOPS_PER_CYCLE * CLOCK * cores())

    def compile(self, session: Session, desc: OwnDesc, config: NoConfig, epilogue: Epilogue | None = None) -> Launches:
        # raise Unsupported: host arrays need no session (`toprung.execute.host.numpy_product`)
        raise Unsupported("NumPy multiplies arrays in the host's memory, and these are on a device")


FAMILY = HostBLAS()
