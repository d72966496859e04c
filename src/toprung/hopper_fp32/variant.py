"""The kernels of plain fp32 on Hopper: their free parameters and their texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.build import with_includes
from toprung.ladders.hopper_fp32.r05_loads_in_order import ring
from toprung.tile import Tile

FOLDER = Path(__file__).parent.parent / "ladders" / "hopper_fp32"


@dataclass(frozen=True)
class Variant:
    """Free parameters of the product's kernel: a block of eight warps of 64 × 64 and a warpgroup that fetches.

    Attributes
    ----------
    BM, BN : of C, that a block owns at a time
    BK : of K, in a stage of the ring; even, the loop over it is unrolled and must fit the instruction cache
    STAGES : of the ring
    WAIT_AT : the k in a stage before which the next stage is waited for
    GROUP : rows of tiles that are walked together
    TURN_A : 1: A is stored M×K, on 16 bytes, and turned in shared memory stage by stage, not by a pass beforehand
    """

    BM: int = 128
    BN: int = 256
    BK: int = 14
    STAGES: int = 5
    WAIT_AT: int = 7
    GROUP: int = 8
    TURN_A: int = 0

    @property
    def shared_bytes(self) -> int:
        """The ring, and A's stages before they are turned."""
        return ring(self.tile) + self.TURN_A * self.STAGES * 4 * self.BM * self.BK

    @property
    def tile(self) -> Tile:
        """As a rung's, or a choice's."""
        return Tile(BM=self.BM, BN=self.BN, BK=self.BK, TM=8, TN=16, STAGES=self.STAGES)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.BM * self.BN // 128 + 128

    def refused(self) -> str:
        """Why there is no such kernel, empty where there is."""
        if self.BM % 64 or self.BN % 64 or self.BM * self.BN != 8 * 64 * 64:
            return "a block is eight warps of 64 × 64: more do not have the registers they were compiled for"
        if self.BK % 2 or not 0 <= self.WAIT_AT < self.BK:
            return "fragments alternate between two sets of registers, and the wait stands within a stage"
        if self.TURN_A and self.BK != 12:
            return "what turns A meets no bank of shared memory twice where a stage is 12 deep, and only there"
        if self.TURN_A and self.BM % 128:
            return "what turns A takes 128 rows at a time"
        if self.STAGES < 2 or self.shared_bytes > 227 * 1024:
            return f"{self.STAGES} stages are {self.shared_bytes:,} bytes of shared memory: from 2 stages to {227 * 1024:,} bytes"
        return ""

    def defines(self, **more: int) -> dict[str, int]:
        """As macros; with ``ROWS`` of the kernel that adds to C."""
        pad = (ADDING_PADS if more.get("ROWS") else PADS).get((self.BM, self.BK), 0)
        return {"ARCH_SPECIFIC": 1, "IN_ORDER": 1, "APART": 1, "PAD": pad, **asdict(self), **more}

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN}x{self.BK} S{self.STAGES} W{self.WAIT_AT} G{self.GROUP}" + " turns A" * self.TURN_A


PADS = {(64, 14): 6, (256, 14): 2, (512, 14): 2, (512, 12): 2}
"""Instructions in front of the main loop, by BM and BK, which move it within a line of 128 bytes, as NVRTC 13.0 compiles the
kernel: for BM = 128, where none are needed, and 64 to where it was the fastest of eight places; else to where it was measured."""
ADDING_PADS = {(128, 14): 7}
"""The same of the kernel that adds to C, whose loop has other registers; of others no place was better."""
ADDED_ROWS = 2
"""Rows of C that this kernel fetches together. Its loop takes up to a hundredth longer than that of the kernel that only writes."""
FIRST = Variant()
VARIANTS = (
    FIRST,
    Variant(256, 128),
    Variant(512, 64, GROUP=4),
    Variant(64, 512, GROUP=16),
    Variant(512, 64, BK=12, STAGES=4, WAIT_AT=11, GROUP=4, TURN_A=1),
    Variant(BK=10, STAGES=7, WAIT_AT=5, GROUP=16),
)
"""Block shapes that are weighed; and shorter stages, of which a short K leaves less empty."""


def product_source(variant: Variant, **more: int) -> Source:
    """The product's kernel."""
    text = "".join(f'#include "{name}"\n' for name in ("../hopper/hopper.cuh", "ffma.cuh", "share.cuh", "turn.cuh", "ffma.cu"))
    defines = {**variant.defines(**more), DYNAMIC_SHARED: variant.shared_bytes}
    return Source("hopper_fp32/ffma", with_includes(text, FOLDER), "ffma", defines, "cuda")


def lay_source() -> Source:
    """The layout pass."""
    text = '#include "../hopper/hopper.cuh"\n#include "lay.cu"\n'
    return Source("hopper_fp32/lay", with_includes(text, FOLDER), "lay", {"ARCH_SPECIFIC": 1}, "cuda")
