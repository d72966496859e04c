"""Configurations: parameters of the product's kernel, and slices of K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from toprung.kernels.base import FieldsConfig, parameter

CHUNK = 32
"""Elements of K in a stage of the ring: 32 hi and 32 lo are a row of 128 bytes."""
SHARED_BYTES = 227 * 1024
"""Shared memory that a block may have."""
PLAIN_BYTES = 2 * 16 * 68 * 4 + 16
"""Shared memory of a consumer for what it computes again in plain fp32."""
LARGEST_GROUP = 1 << 10
"""Rows of tiles that are walked together at most."""


@dataclass(frozen=True)
class Fp32xConfig(FieldsConfig):
    """Free parameters of the product's kernel; a block owns 64·CONSUMERS × BN of C at a time.

    Attributes
    ----------
    STAGES : of the ring
    GROUP : rows of tiles that are walked together
    slices : of K, of a depth that is a multiple of 32 (all of K where it is one slice)
    """

    fixed: ClassVar[Mapping[str, int]] = {"BK": CHUNK}
    former = frozenset({"INTERVAL"})  # until 2026-11-29: k-blocks that stay in the Tensor Core

    CONSUMERS: int = parameter(2, 1, name="BM", unit=64)
    BN: int = parameter(128, 64, 32)
    STAGES: int = parameter(6, 8, 4, 12)
    GROUP: int = parameter(8, 16, 4, 1)
    slices: int = parameter(1, 2, 3, 4, name="SPLIT_K", optional=True)

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
        own = {"CONSUMERS": self.CONSUMERS, "BN": self.BN, "STAGES": self.STAGES, "GROUP": self.GROUP}
        return {"ARCH_SPECIFIC": 1, **own, **registers, **more}

    def refused(self) -> str:
        if self.CONSUMERS not in (1, 2) or self.BN not in (32, 64, 128):
            return f"fp32x has tiles of 64 or 128 rows and 32, 64 or 128 columns, not of {self.BM}×{self.BN}"
        if not 1 <= self.GROUP <= LARGEST_GROUP:
            return f"fp32x walks 1 to {LARGEST_GROUP} rows of tiles together, not {self.GROUP}"
        if self.STAGES < 2:
            return "fp32x fills one stage of its ring while it multiplies another"
        if (used := self.shared_bytes + self.CONSUMERS * PLAIN_BYTES) > SHARED_BYTES:
            return f"{self.STAGES} stages of {self.BM}×{self.BN} take {used:,} bytes of shared memory; there are {SHARED_BYTES:,}"
        return ""
