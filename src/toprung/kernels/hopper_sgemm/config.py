"""Configurations: a variant of the product's kernel; and the sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.kernels.base import FieldsConfig, parameter
from toprung.kernels.hopper import LARGEST_GROUP, SHARED_BYTES, ceil
from toprung.kernels.record import joined
from toprung.tile import Tile

FOLDER = Path(__file__).parent

CHAIN, SHORT_CHAIN = 512, 280
"""Products of a sum that are added up by themselves at most, a link of a chain: the error of a sum grows with L + K/L, not with K.
The shorter one is for tiles that leave SMs without one, where cuBLAS cuts sums into as many as seven."""

LARGEST_STEP = 32
"""Largest BK, and largest number of stages of the ring, for which the kernel is built."""


def ring(tile: Tile) -> int:
    """Return the bytes of STAGES tiles of A and B in fp32, 128 a stage for barriers, their alignment, and four zeros."""
    return (tile.STAGES or 1) * (4 * (tile.BM + tile.BN) * (tile.BK or 0) + 128) + 128 + 16


@dataclass(frozen=True)
class SgemmConfig(FieldsConfig):
    """Free parameters of the product's kernel: a block of eight warps of 64 × 64 and a warpgroup that fetches.

    Attributes
    ----------
    BM, BN : of C, that a block owns at a time
    BK : of K, in a stage of the ring; even, the loop over it is unrolled and must fit the instruction cache
    STAGES : of the ring
    WAIT_AT : the k in a stage before which the next stage is waited for
    GROUP : rows of tiles that are walked together
    TURN_A : 1: A is stored M×K, on 16 bytes, and turned in shared memory stage by stage, not by a pass beforehand
    COPY : 1: operands that the copy engine cannot fetch are copied into the ring by threads, not laid out by a pass beforehand
    """

    fixed: ClassVar[Mapping[str, int]] = {"TM": 8, "TN": 16}

    BM: int = parameter(128)
    BN: int = parameter(256)
    BK: int = parameter(14)
    STAGES: int = parameter(4)
    WAIT_AT: int = parameter(7)
    GROUP: int = parameter(8)
    TURN_A: int = parameter(0)
    COPY: int = parameter(0, optional=True)

    @property
    def shared_bytes(self) -> int:
        """The ring, A's stages before they are turned, and the sums of a chain's links."""
        if self.TURN_A:
            return ring(self.tile) + self.STAGES * 4 * self.BM * self.BK
        return self.held + 4 * self.BM * self.BN

    def stages(self, chain: int) -> int:
        """Return the stages of ``chain`` products; three times as many where links are added up in memory, which takes longer."""
        return ceil(chain, self.BK) * (3 if self.TURN_A else 1)

    @property
    def held(self) -> int:
        """Offset in shared memory of the sums of a chain's links; 0 where they lie in each thread's own memory."""
        return 0 if self.TURN_A else ceil(ring(self.tile), 128) * 128

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM * self.BN // 128 + 128

    def refused(self) -> str:
        # old records name some that left no room for links
        if reason := self.malformed():
            return reason
        if self.shared_bytes > SHARED_BYTES:
            return f"{self.STAGES} stages are {self.shared_bytes:,} bytes of shared memory, more than {SHARED_BYTES:,}"
        return ""

    def malformed(self) -> str:
        if self.BK > LARGEST_STEP or self.STAGES > LARGEST_STEP or not 0 < self.GROUP <= LARGEST_GROUP:
            return f"hopper_sgemm is not built for {self.text}"
        if self.BM % 64 or self.BN % 64 or self.BM * self.BN != 8 * 64 * 64:
            return "a block is eight warps of 64 × 64: more do not have the registers they were compiled for"
        if self.BK % 2 or not 0 <= self.WAIT_AT < self.BK:
            return "fragments alternate between two sets of registers, and the wait stands within a stage"
        if self.TURN_A and self.BK != 12:
            return "what turns A meets no bank of shared memory twice where a stage is 12 deep, and only there"
        if self.TURN_A and self.BM % 128:
            return "what turns A takes 128 rows at a time"
        if self.COPY not in (0, 1) or (self.COPY and self.TURN_A):
            return "operands are copied, or A is turned"
        return "a ring has two stages at least" if self.STAGES < 2 else ""

    def defines(self, **more: int) -> dict[str, int]:
        """Return the kernel's macros; with ``ROWS`` those of the kernel that adds to C."""
        pads = NARROW_PADS if more.get("NARROW_C") else ADDING_PADS if more.get("ROWS") else PADS
        pad = pads.get((self.BM, self.BK), 0)
        chain = {"LINK": self.stages(CHAIN), "HELD": self.held}
        own = {name: n for name, n in asdict(self).items() if name != "COPY"}  # which operands are copied follows the product
        return {"ARCH_SPECIFIC": 1, "IN_ORDER": 1, "APART": 1, "PAD": pad, **chain, **own, **more}

    @property
    def text(self) -> str:
        """All parameters in one word each; the variant itself prints as its tile, as receipts have it."""
        more = " turns A" * self.TURN_A + " copies" * self.COPY
        return f"{self.BM}x{self.BN}x{self.BK} S{self.STAGES} W{self.WAIT_AT} G{self.GROUP}{more}"


PADS = {(64, 14): 6, (256, 14): 2, (512, 14): 2, (512, 12): 2}
"""Instructions in front of the main loop, by BM and BK, which move it within a line of 128 bytes, as NVRTC 13.0 compiles the
kernel: for BM = 128, where none are needed, and 64 to where it was the fastest of eight places; else to where it was measured."""
ADDING_PADS = {(128, 14): 7}
"""``PADS`` of the kernel that adds to C, whose loop has other registers; for others no place was better."""
NARROW_PADS = {(64, 14): 2, (128, 14): 3, (128, 10): 3, (256, 14): 6, (512, 14): 6}
"""``PADS`` of the kernel that writes a narrow C: its loop lies in the line of 128 bytes as that of the kernel of ``PADS`` does."""
ADDED_ROWS = 2
"""Rows of C that this kernel fetches together. Its loop takes up to a hundredth longer than that of the kernel that only writes."""
FIRST = SgemmConfig()
UNCOPIED = (
    FIRST,
    SgemmConfig(256, 128),
    SgemmConfig(512, 64, STAGES=3, GROUP=4),
    SgemmConfig(64, 512, STAGES=3, GROUP=16),
    SgemmConfig(512, 64, BK=12, STAGES=4, WAIT_AT=11, GROUP=4, TURN_A=1),
    SgemmConfig(BK=10, STAGES=6, WAIT_AT=5, GROUP=16),
)
VARIANTS = (*UNCOPIED, *(replace(v, COPY=1) for v in UNCOPIED if not v.TURN_A))
"""Block shapes that are weighed; and shorter stages, of which a short K leaves less empty. Each with what the
copy engine cannot fetch laid out first, or copied."""


def product_source(variant: SgemmConfig, **more: int) -> Source:
    """Return the product's kernel; ``more``: macros, as ``COPY_A`` and ``COPY_B`` for operands that are copied."""
    copies = bool(more.get("COPY_A") or more.get("COPY_B"))
    headers = ["../include/hopper.cuh", *["../include/hopper_rs.cuh"] * copies, "../include/epilogue.cuh"]
    headers += ["ffma.cuh", "share.cuh", "turn.cuh", *["copies.cuh"] * copies, "ffma.cu"]
    defines = {**variant.defines(**more), DYNAMIC_SHARED: variant.shared_bytes}
    title = f"hopper_sgemm_{variant.BM}x{variant.BN}x{variant.BK}"
    return Source("hopper_sgemm/ffma", joined(FOLDER, *headers), "ffma", defines, "cuda", title=title)


def lay_source() -> Source:
    """Return the layout pass."""
    text = joined(FOLDER, "../include/hopper.cuh", "lay.cu")
    return Source("hopper_sgemm/lay", text, "lay", {"ARCH_SPECIFIC": 1}, "cuda", title="hopper_sgemm_lay")
