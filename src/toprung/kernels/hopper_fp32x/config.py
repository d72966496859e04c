"""Configurations: a variant of the product's kernel, and slices of K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from toprung.kernels.base import KernelConfig
from toprung.tile import Tile

CHUNK = 32
"""Elements of K in a stage of the ring: 32 hi and 32 lo are a row of 128 bytes."""
SHARED_BYTES = 227 * 1024
"""Shared memory that a block may have."""
PLAIN_BYTES = 2 * 16 * 68 * 4 + 16
"""Shared memory of a consumer for what it computes again in plain fp32."""
LARGEST_GROUP = 1 << 10
"""Rows of tiles that are walked together at most."""


@dataclass(frozen=True)
class Variant:
    """Free parameters of the product's kernel; a block owns 64·CONSUMERS × BN of C at a time.

    Attributes
    ----------
    STAGES : of the ring
    GROUP : rows of tiles that are walked together
    """

    CONSUMERS: int = 2
    BN: int = 128
    STAGES: int = 6
    GROUP: int = 8

    @property
    def BM(self) -> int:
        """Rows of C that a block owns at a time."""
        return 64 * self.CONSUMERS

    @property
    def shared_bytes(self) -> int:
        """The ring on 1024 bytes, and its barriers."""
        return self.STAGES * (self.BM + self.BN) * 128 + 1024 + 16 * self.STAGES

    def defines(self, **more: int) -> dict[str, int]:
        """Return the kernel's macros."""
        moved = self.CONSUMERS == 2  # registers change hands where the compiler could not give a thread enough
        registers = {"PRODUCER_REGISTERS": 24 * moved, "CONSUMER_REGISTERS": 240 * moved}
        return {"ARCH_SPECIFIC": 1, **asdict(self), **registers, **more}

    def refused(self) -> str:
        """Return why no kernel is built with these parameters, as a sentence; empty where one is."""
        if self.CONSUMERS not in (1, 2) or self.BN not in (32, 64, 128):
            return f"fp32x has tiles of 64 or 128 rows and 32, 64 or 128 columns, not of {self.BM}×{self.BN}"
        if not 1 <= self.GROUP <= LARGEST_GROUP:
            return f"fp32x walks 1 to {LARGEST_GROUP} rows of tiles together, not {self}"
        if self.STAGES < 2:
            return "fp32x fills one stage of its ring while it multiplies another"
        if (used := self.shared_bytes + self.CONSUMERS * PLAIN_BYTES) > SHARED_BYTES:
            return f"{self.STAGES} stages of {self.BM}×{self.BN} take {used:,} bytes of shared memory; there are {SHARED_BYTES:,}"
        return ""

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN} S{self.STAGES} G{self.GROUP}"


@dataclass(frozen=True)
class Fp32xConfig(KernelConfig):
    """A variant of the kernel, and slices of K of a depth that is a multiple of 32 (all of K where it is one slice)."""

    variant: Variant
    slices: int = 1

    @property
    def tile(self) -> Tile:
        """The block as a tile, with ``SPLIT_K`` where K is sliced."""
        v = self.variant
        return Tile(v.BM, v.BN, CHUNK, STAGES=v.STAGES, SPLIT_K=self.slices if self.slices > 1 else None)

    def encode(self) -> dict[str, dict[str, int]]:
        return {"tile": self.tile.given(), "options": {"GROUP": self.variant.GROUP}}

    @classmethod
    def decode(cls, tile: Mapping[str, int], options: Mapping[str, int]) -> Fp32xConfig:
        """Return the inverse of ``encode``; ValueError for anything else, or for a kernel that is not built."""
        # until 2026-11-29 entries had an INTERVAL, of k-blocks that stay in the Tensor Core
        if tile.keys() - {"SPLIT_K"} != {"BM", "BN", "BK", "STAGES"} or options.keys() - {"INTERVAL"} != {"GROUP"}:
            raise ValueError("hopper_fp32x needs a tile with BM, BN, BK and STAGES, and an option GROUP")
        if tile["BM"] % 64 or tile["BK"] != CHUNK:
            raise ValueError(f"a block of hopper_fp32x has a multiple of 64 rows, and stages of {CHUNK} of K")
        variant = Variant(tile["BM"] // 64, tile["BN"], tile["STAGES"], options["GROUP"])
        if reason := variant.refused():
            raise ValueError(reason)
        return cls(variant, tile.get("SPLIT_K", 1))

    def __str__(self) -> str:
        return str(self.tile)
