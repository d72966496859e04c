"""cuBLAS: what is installed, in the caller's stream. Taken where the cost model or a measurement says that it is faster."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import ClassVar

from toprung.backends import cublas
from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.classes import is_skinny
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels.base import MOST, KernelFamily, Launches, NoConfig
from toprung.kernels.blocks import Block, aligned_blocks
from toprung.kernels.launch import foreign
from toprung.kernels.skinny_model import aligned_teams

_fitted = cost_model.fitted("cublas")
MODEL = SimpleNamespace(**_fitted["factors"], **{name: _fitted[name] for name in ("times", "more", "split_more")})
"""Numbers of the model of cuBLAS; ``means`` in ``models/cublas.json`` explains each."""


class CuBLAS(KernelFamily[NoConfig]):
    """``cublasGemmEx``, or its strided batch."""

    name = "cublas"
    own = False
    release = staticmethod(cublas.version)
    reproducible = ""
    compute: ClassVar[int] = cublas.COMPUTE_32F

    def supports(self, device: Device, desc: Desc) -> str:
        return cublas.unsupported(device, desc)

    def weighed(self, device: Device, desc: Desc, most: int = MOST) -> Iterable[tuple[float, NoConfig]]:
        # none where nothing is to be multiplied: our own kernels compute β·C, unless TF32 is asked for
        return [] if desc.is_empty and self.precision != "tf32" else super().weighed(device, desc, most)

    def cost(self, device: Device, desc: Desc, config: NoConfig) -> float:
        # the seconds of the best block or team that cuBLAS may have, as if operands were aligned: it takes narrow operands as it
        # takes wide ones, in large tiles. Its blocks have cycles of their own, fitted to its times; its teams are ours.
        p = MODEL
        times = [seconds + (p.split_more if slices > 1 else 0.0) for slices, seconds in aligned(device, desc)]
        if not times:
            return 0.0
        least = min(times) + p.more
        if not desc.is_vector and 1 < min(desc.M, desc.N) <= p.narrow:
            least *= p.narrow_times
        elif desc.batch > 1:
            least *= p.batched_times.get(device.name, p.batched_times["else"])
        elif not desc.is_vector and desc.K <= p.short:
            least *= p.short_times.get(device.name, p.short_times["else"])
        elif not desc.is_vector and desc.K >= p.deep:
            least *= p.deep_times
        return float(max(least, cost_model.HOST.cublas))

    def reason(self, device: Device, desc: Desc, config: NoConfig) -> str:
        return "it is installed, and by the cost model the faster"

    def compile(self, session: Session, desc: Desc, config: NoConfig, epilogue: Epilogue | None = None) -> Launches:
        return foreign(session, desc, lambda: cublas.gemm_ex(session, desc, self.compute))


def aligned(device: Device, desc: Desc) -> list[tuple[int, float]]:
    """Return K slices and seconds of what cuBLAS may have."""
    found = [(slices, MODEL.team_times * seconds) for slices, seconds in aligned_teams(device, desc)] if is_skinny(desc) else []
    if desc.is_vector or min(desc.M, desc.N) == 1:
        return found
    return found + [(slices, MODEL.times * seconds) for _, slices, seconds in blocks(device, desc)]


def blocks(device: Device, desc: GemmDesc) -> list[tuple[Block, int, float]]:
    """Return the blocks that stand for cuBLAS's, K slices, and the block model's seconds."""
    return aligned_blocks(device, desc, MODEL.side if desc.batch == 1 else MODEL.side_of_batches, MODEL.split_side)


FAMILY = CuBLAS()
