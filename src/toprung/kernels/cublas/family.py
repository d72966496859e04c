"""cuBLAS: what is installed, in the caller's stream. Taken where the cost model or a measurement says that it is faster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from toprung.backends import cublas
from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.classes import is_skinny
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels.base import KernelFamily, Launches, NoConfig
from toprung.kernels.blocks import Block, aligned_blocks
from toprung.kernels.launch import foreign
from toprung.kernels.skinny_model import aligned_teams

TIMES, MORE, SPLIT_MORE = (float(cost_model.fitted("cublas")[name]) for name in ("times", "more", "split_more"))
"""Cost model of cuBLAS: TIMES × (time of our best aligned blocks) + MORE seconds, and SPLIT_MORE where sums are split."""

TEAM_TIMES = 1.1
"""Factor of the time of our best aligned teams, where a side is short or there is a vector."""

SIDE, SIDE_OF_BATCHES = 64, 32
"""It is weighed by those of our tiles whose sides have at least so many elements: for batches it has narrower ones."""

SPLIT_SIDE = 128
"""Least side of its tiles where it splits sums over K: that is why it takes long for deep products with a short side."""

NARROW, NARROW_TIMES = 4, 1.5
"""Products with a side from two to NARROW elements take it about NARROW_TIMES as long: its tiles stay large."""

BATCHED_TIMES = 1.15
SHORT, SHORT_TIMES = 100, 1.1
DEEP, DEEP_TIMES = 5_000, 1.1
"""Factors for batches, and up to and from such a K on, where its time is now and then up to four times what the model has. With
each less is lost to the slower of the two on an H100's ``routes-2026-11-26.json``, ``routes-clusters.json`` and checks of seeds 263
and 271."""


class CuBLAS(KernelFamily[NoConfig]):
    """``cublasGemmEx``, or its strided batch."""

    name = "cublas"
    own = False
    release = staticmethod(cublas.version)
    reproducible = ""
    compute: ClassVar[int] = cublas.COMPUTE_32F

    def supports(self, device: Device, desc: Desc) -> str:
        return cublas.unsupported(device, desc)

    def candidates(self, device: Device, desc: Desc) -> Iterable[NoConfig]:
        # the one there is, unless nothing is to be multiplied: β·C is ours
        return [] if desc.is_empty else [NoConfig()]

    def cost(self, device: Device, desc: Desc, config: NoConfig) -> float:
        # the seconds of the best block or team that cuBLAS may have, as if operands were aligned: it takes narrow operands as it
        # takes wide ones, in large tiles. Its blocks have cycles of their own, fitted to its times; its teams are ours.
        times = [seconds + (SPLIT_MORE if slices > 1 else 0.0) for slices, seconds in aligned(device, desc)]
        if not times:
            return 0.0
        least = min(times) + MORE
        if not desc.is_vector and 1 < min(desc.M, desc.N) <= NARROW:
            least *= NARROW_TIMES
        elif desc.batch > 1:
            least *= BATCHED_TIMES
        elif not desc.is_vector:
            least *= SHORT_TIMES if desc.K <= SHORT else DEEP_TIMES if desc.K >= DEEP else 1.0
        return max(least, cost_model.HOST.cublas)

    def reason(self, device: Device, desc: Desc, config: NoConfig) -> str:
        return "it is installed, and by the cost model the faster"

    def compile(self, session: Session, desc: Desc, config: NoConfig, epilogue: Epilogue | None = None) -> Launches:
        return foreign(session, desc, lambda: cublas.gemm_ex(session, desc, self.compute))


def aligned(device: Device, desc: Desc) -> list[tuple[int, float]]:
    """Return K slices and seconds of what cuBLAS may have."""
    found = [(slices, TEAM_TIMES * seconds) for slices, seconds in aligned_teams(device, desc)] if is_skinny(desc) else []
    if desc.is_vector or min(desc.M, desc.N) == 1:
        return found
    return found + [(slices, TIMES * seconds) for _, slices, seconds in blocks(device, desc)]


def blocks(device: Device, desc: GemmDesc) -> list[tuple[Block, int, float]]:
    """Return the blocks that stand for cuBLAS's, K slices, and the block model's seconds."""
    return aligned_blocks(device, desc, SIDE if desc.batch == 1 else SIDE_OF_BATCHES, SPLIT_SIDE)


FAMILY = CuBLAS()
