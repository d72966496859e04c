"""cuBLAS: what is installed, in the caller's stream. Taken where the cost model or a measurement says that it is faster."""

from __future__ import annotations

from collections.abc import Iterable

from toprung.backends import cublas
from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.classes import is_skinny
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import KernelConfig, KernelFamily, Launches, NoConfig
from toprung.kernels.blocks import aligned_blocks
from toprung.kernels.skinny_model import aligned_teams

TIMES, MORE, SPLIT_MORE = 1.01, 2e-6, 2e-6
"""Cost model of cuBLAS: TIMES × (time of our best aligned kernel) + MORE seconds, and SPLIT_MORE where sums are split. Fitted by
``benchmarks/fit_routes.py``."""

SIDE, SIDE_OF_BATCHES = 64, 32
"""It is weighed by those of our tiles whose sides have at least so many elements: for batches it has narrower ones."""

SPLIT_SIDE = 128
"""Least side of its tiles where it splits sums over K: that is why it takes long for deep products with a short side."""

NARROW, NARROW_TIMES = 4, 1.4
"""Products with a side from two to NARROW elements take it about NARROW_TIMES as long: its tiles stay large."""

SHORT, SHORT_TIMES = 64, {False: 1.07, True: 1.10}
"""Largest K of products whose time is that of writing C, and cuBLAS's factor for them, more where B lies along K. Fitted to
``results/nvidia-h200/torch-products.json``."""

LARGE, LEAST_DEPTH, LARGE_TIMES = 1e9, 256, 0.95
"""Operations, and K, from which on its time is LARGE_TIMES of that where no side is shorter than SPLIT_SIDE."""

DEEP, DEEP_TIMES = 20_000, 1.15
"""Least K of products of which it takes DEEP_TIMES as long where B lies along K, too. Fitted, as LARGE_TIMES, to
``results/nvidia-h100-80gb-hbm3/tune-check-seed73.json``, and tested on the checks of other seeds beside it and of an H200."""


class CuBLAS(KernelFamily):
    """``cublasGemmEx``, or its strided batch."""

    name = "cublas"
    own = False
    reproducible = ""

    def supports(self, device: Device, desc: Desc) -> str:
        """Return why cuBLAS is not there, or does not take the product."""
        return cublas.unsupported(device, desc)

    def candidates(self, device: Device, desc: Desc) -> Iterable[NoConfig]:
        """Return the one there is, unless nothing is to be multiplied: β·C is ours."""
        return [] if desc.is_empty else [NoConfig()]

    def cost(self, device: Device, desc: Desc, config: KernelConfig) -> float:
        """Return the seconds of our best kernel as if operands were aligned, in the tiles that cuBLAS may have.

        cuBLAS takes narrow operands as it takes wide ones, in large tiles, and a program takes longer to call it. That both times
        come from one model is the point: where it errs it errs on both.
        """
        times = [TIMES * seconds + (SPLIT_MORE if slices > 1 else 0.0) for slices, seconds in aligned(device, desc)]
        if not times:
            return 0.0
        least = min(times) + MORE
        if not desc.is_vector and 1 < min(desc.M, desc.N) <= NARROW:
            least *= NARROW_TIMES
        elif isinstance(desc, GemmDesc):
            if desc.K <= SHORT:
                least *= SHORT_TIMES[desc.trans_b]
            elif desc.K >= DEEP:
                least *= DEEP_TIMES if desc.trans_b else 1.0
            elif desc.K >= LEAST_DEPTH and desc.flops >= LARGE and min(desc.M, desc.N) >= SPLIT_SIDE:
                least *= LARGE_TIMES
        return max(least, cost_model.HOST.cublas)

    def reason(self, device: Device, desc: Desc, config: KernelConfig) -> str:
        """Return that the model decided."""
        return "it is installed, and by the cost model the faster"

    def compile(self, session: Session, desc: Desc, config: KernelConfig) -> Launches:
        """Return the call of the library. A vector is a matrix with one column."""
        return Launches(lambda: cublas.gemm_ex(session, desc, cublas.COMPUTE_32F))

    def version(self, backend: str) -> str:
        """Return the library's version."""
        return cublas.version()


def aligned(device: Device, desc: Desc) -> Iterable[tuple[int, float]]:
    """Yield K slices and seconds of what cuBLAS may have."""
    if is_skinny(desc):
        yield from aligned_teams(device, desc)
    if isinstance(desc, GemmDesc) and min(desc.M, desc.N) > 1:
        for block, slices, seconds in aligned_blocks(device, desc, SIDE if desc.batch == 1 else SIDE_OF_BATCHES):
            if slices == 1 or max(block.tile.BM, block.tile.BN) >= SPLIT_SIDE:
                yield slices, seconds


FAMILY = CuBLAS()
