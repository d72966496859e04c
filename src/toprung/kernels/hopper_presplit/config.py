"""Configurations, and the kernel's source: ``presplit.cu``, made of the headers of ``hopper_inflight``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toprung.backends.base import Source
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import parameter
from toprung.kernels.hopper_inflight.config import (
    AGAIN_BYTES,
    CHUNK,
    REGISTERS,
    TYPES,
    InflightConfig,
    aligned,
)
from toprung.kernels.record import with_includes

FOLDER = Path(__file__).parents[1] / "hopper_fp32x"
PRESPLIT = 3
"""The kernel's number for a B of terms (``B_TYPE``)."""
BLOCKS = {(2, 128): 5, (2, 64): 7}
"""Blocks that are built, as consumers and columns, and the stages of the ring that fit."""


@dataclass(frozen=True)
class PresplitConfig(InflightConfig):
    """A block that owns 64·CONSUMERS × BN of C at a time; see ``InflightConfig``."""

    STAGES: int = parameter(5)

    @property
    def threads(self) -> int:
        # threads of a block: a warpgroup that copies, and the consumers
        return 128 * (self.CONSUMERS + 1)

    @property
    def spare_bytes(self) -> int:
        return AGAIN_BYTES * 32

    @property
    def registers(self) -> tuple[int, int, int]:
        each = REGISTERS // (self.threads * self.most) // 8 * 8 * (self.CONSUMERS + 1)
        copier = 40
        return copier, 0, min((each - copier) // self.CONSUMERS // 8 * 8, 240)

    def refused(self) -> str:
        if (self.CONSUMERS, self.BN) not in BLOCKS:
            return f"a block has 128×128 or 128×64 of C, not {self.BM}×{self.BN}"
        return super().refused()


def aligned_a(desc: GemmDesc) -> int:
    """Return the words of 4 bytes to which every row of A is aligned."""
    return aligned(desc)[0]


def product_source(config: PresplitConfig, desc: GemmDesc, **more: int) -> Source:
    """Return the product's kernel; ``more``: macros."""
    kinds = {"A_TYPE": TYPES[desc.type_a], "B_TYPE": PRESPLIT}
    defines = {**config.defines(desc.trans_a, desc.trans_b, aligned_a(desc), 1), **kinds, **more}
    text, title = with_includes('#include "presplit.cu"\n', FOLDER), f"presplit_{config.BM}x{config.BN}x{CHUNK}"
    return Source("hopper_presplit/inflight", text, "inflight", defines, "cuda", title=title)
