"""The configuration of a product: where operands are split, the block's shape and ring, and how K is shared out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from toprung import forks
from toprung.backends.base import DYNAMIC_SHARED
from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc, widest
from toprung.kernels.base import Axes, FieldsConfig, parameter
from toprung.kernels.hopper import LARGEST_GROUP, SHARED_BYTES

K_BLOCK = 32
"""Elements of K in a stage of the ring: 32 hi and 32 lo are a row of 128 bytes, as are 32 of fp32."""
BOTH, ONE, IN_FLIGHT = "both", "one", "in flight"
"""Operands that are split before the product's launch multiplies them: A and B, B alone, or none."""
REGISTERS = 65536
"""32-bit registers of an SM."""
PLAIN_BYTES, AGAIN_BYTES = 2 * 16 * 68 * 4 + 16, 4 * (17 + 34)
"""Shared memory for what is computed again in plain fp32: of a consumer with both operands split; of a
consumer warp for an element of K."""
LONG: Final[Mapping[tuple[int, int], int]] = {(1, 64): 11, (1, 32): 14}
"""Stages of a ring that leaves no room for a second block, where a launch has no more blocks than SMs. Else two may share an SM
while another has none: a launch may begin before the one before it has ended, and a cluster takes its SMs in one GPC."""
CLUSTERS = (1, 2, 4, 8, 16)
"""Blocks of a cluster."""
SPIN_LIMIT = 1 << 26
"""Tries after which a wait inside the kernel is an error and not for ever, seconds at least."""
TYPES, PRESPLIT = {"float32": 0, "float16": 1, "bfloat16": 2}, 3
"""Numbers that the kernel has for types of operands, and for a B of terms."""
BLOCKS: Mapping[str, tuple[tuple[int, int], ...]] = {
    BOTH: ((2, 128), (2, 64), (2, 32), (1, 128), (1, 64), (1, 32)),
    ONE: ((2, 128), (2, 64)),
    IN_FLIGHT: ((2, 128), (2, 64), (2, 32), (1, 64), (1, 32)),
}
"""Consumers and columns of the blocks that are built."""
SEARCHED: Mapping[str, tuple[int, ...]] = {BOTH: (6, 8, 4, 12), ONE: (5,), IN_FLIGHT: (4, 6, 8, 5, 3, *LONG.values())}
"""Stages that a search tries."""


@dataclass(frozen=True)
class Fp32xConfig(FieldsConfig):
    """A block that owns 64·CONSUMERS × BN of C at a time, and how many blocks share a tile along K.

    Attributes
    ----------
    STAGES : of the ring
    GROUP : rows of tiles that are walked together
    SLICES : blocks of a cluster, each with a slice of K; 1 where both operands are split beforehand
    k_parts : parts of K with a result each, which another launch adds up; 1 where B alone is split beforehand
    split : ``BOTH``, ``ONE`` or ``IN_FLIGHT``
    """

    fixed: ClassVar[Mapping[str, int]] = {"BK": K_BLOCK}
    former = frozenset({"INTERVAL"})  # until 2026-11-29: k-blocks that stay in the Tensor Core

    CONSUMERS: int = parameter(2, 1, name="BM", unit=64)
    BN: int = parameter(128, 64, 32)
    STAGES: int = parameter(*SEARCHED[BOTH])
    GROUP: int = parameter(8, 16, 4, 1)
    SLICES: int = parameter(*CLUSTERS)
    k_parts: int = parameter(1, 2, 3, 4, name="SPLIT_K", optional=True)
    split: str = BOTH

    def stored(self) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        return (one for one in super().stored() if one[1].name != ("SLICES" if self.adds else "k_parts"))

    def axes(self) -> Axes:
        return {**super().axes(), "STAGES": SEARCHED[self.split]}

    @property
    def slices(self) -> int:
        return self.k_parts

    @property
    def adds(self) -> bool:
        """True if K may be cut into parts that another launch adds up; else a cluster may share a tile."""
        return self.split == BOTH or self.k_parts > 1

    @forks.cached_property
    def BM(self) -> int:
        """Rows of C that a block owns at a time."""
        return 64 * self.CONSUMERS

    @forks.cached_property
    def most(self) -> int:
        """Blocks that an SM has registers for."""
        return 3 - self.CONSUMERS

    @forks.cached_property
    def resident(self) -> int:
        """Blocks that an SM runs at once: registers decide, or a ring so long that there is room for one."""
        return max(1, min(self.most, (SHARED_BYTES + 1024) // (self.shared_bytes + 1024)))

    @forks.cached_property
    def is_alone(self) -> bool:
        """True if the ring leaves no room for a second block, though an SM has registers for it."""
        return self.split != BOTH and self.resident < self.most

    @property
    def threads(self) -> int:
        """Threads of a block: a warpgroup that copies, one that splits B in flight, and the consumers."""
        return 128 * (self.CONSUMERS + 1 + (self.split == IN_FLIGHT))

    @forks.cached_property
    def shared_bytes(self) -> int:
        """Shared memory: the ring on 1024 bytes and its barriers; in flight B's scales, column statistics, what warps have."""
        ring = 1024 + self.STAGES * 128 * (self.BM + self.BN)
        if self.split == BOTH:
            return ring + 16 * self.STAGES
        statistics = 2 * (32 + 2 * self.BN)  # of a tile's columns, in each phase
        return ring + self.STAGES * (4 * self.BN + 24 + statistics) + 4 * self.CONSUMERS * self.spare_bytes  # three barriers

    @forks.cached_property
    def spare_bytes(self) -> int:
        """Shared memory of a consumer warp, for operands of what it computes again or for 16 rows of C on their way out."""
        again = AGAIN_BYTES * (16 if self.BN < 64 else 32)
        leaves = self.split == IN_FLIGHT and self.BN >= 64 and self.SLICES == 1
        return max(again, 64 * (self.BN + 16)) if leaves else again

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of a thread that copies, that splits, and of a consumer: all that the launch gave, shared out anew."""
        each = REGISTERS // (self.threads * self.most) // 8 * 8 * (self.threads // 128)
        copier, splitter = 40, {128: 88, 64: 72, 32: 56}[self.BN] if self.split == IN_FLIGHT else 0
        return copier, splitter, min((each - copier - splitter) // self.CONSUMERS // 8 * 8, 240)

    def defines(self, trans_a: bool = False, trans_b: bool = False, align_a: int = 4, align_b: int = 4) -> dict[str, int]:
        """Return the kernel's macros; in flight for a layout of the operands and words to which they are aligned."""
        shape = {"ARCH_SPECIFIC": 1, "CONSUMERS": self.CONSUMERS, "BN": self.BN, "STAGES": self.STAGES, "GROUP": self.GROUP}
        shape[DYNAMIC_SHARED] = self.shared_bytes
        if self.split == BOTH:
            moved = self.CONSUMERS == 2  # registers change hands where the compiler could not give a thread enough
            return {**shape, "PRODUCER_REGISTERS": 24 * moved, "CONSUMER_REGISTERS": 240 * moved}
        copier, splitter, consumer = self.registers
        return {
            **shape, "SLICES": self.SLICES, "RESIDENT": self.most, "COPIER_REGISTERS": copier, "SPLITTER_REGISTERS": splitter,
            "CONSUMER_REGISTERS": consumer, "TRANS_A": int(trans_a), "TRANS_B": int(trans_b), "ALIGN_A": align_a,
            "ALIGN_B": align_b, "SPARE_BYTES": self.spare_bytes, "SPIN_LIMIT": SPIN_LIMIT,
        }  # fmt: skip

    def refused(self) -> str:
        if (self.CONSUMERS, self.BN) not in BLOCKS[self.split]:
            known = ", ".join(f"{64 * consumers}×{cols}" for consumers, cols in BLOCKS[self.split])
            return f"a block has {known} of C, not of {self.BM}×{self.BN}"
        if self.SLICES not in CLUSTERS or self.k_parts < 1 or (self.SLICES > 1 and (self.k_parts > 1 or self.split == BOTH)):
            return f"1, 2, 4, 8 or 16 blocks share a tile, or K is cut into parts, not {self.SLICES} and {self.k_parts}"
        if not 1 <= self.GROUP <= LARGEST_GROUP:
            return f"1 to {LARGEST_GROUP} rows of tiles are walked together, not {self.GROUP}"
        if self.STAGES < (least := 2 if self.split == BOTH else 3):
            return f"a ring has {least} stages or more: one stage is multiplied while others are filled, and split in flight"
        used = self.shared_bytes + (self.CONSUMERS * PLAIN_BYTES if self.split == BOTH else 0)
        if used > SHARED_BYTES:
            return f"{self.STAGES} stages of {self.BM}×{self.BN} take {used:,} bytes of shared memory; there are {SHARED_BYTES:,}"
        return ""

    def __str__(self) -> str:
        if self.split == BOTH:
            return super().__str__()
        shared = f" in {self.SLICES} slices of K" * (self.SLICES > 1) + f" in {self.k_parts} parts of K" * (self.k_parts > 1)
        return f"{self.BM}x{self.BN}x{K_BLOCK}{' alone on an SM' * self.is_alone}{shared}"


@functools.lru_cache(1 << 12)
def with_parts(config: Fp32xConfig, parts: int) -> Fp32xConfig:
    """Return a configuration with ``parts`` parts of K."""
    return config if parts == config.k_parts else replace(config, k_parts=parts)


@functools.cache
def in_flight(
    CONSUMERS: int = 2, BN: int = 128, STAGES: int = 4, GROUP: int = 8, SLICES: int = 1, k_parts: int = 1, split: str = IN_FLIGHT
) -> Fp32xConfig:  # fmt: skip
    """Return a configuration whose operands are split on their way to the Tensor Cores."""
    return Fp32xConfig(CONSUMERS, BN, STAGES, GROUP, SLICES, k_parts, split)


presplit = functools.partial(in_flight, split=ONE)
"""Return a configuration whose B is split beforehand, and A on its way."""


@functools.lru_cache(16)
def aligned(desc: GemmDesc) -> tuple[int, int]:
    """Return the words of 4 bytes, 1, 2 or 4, to which every row of A, and of B, is aligned; halves must lie on words."""
    batched, bytes_a, bytes_b = desc.batch > 1, ELEMENT_BYTES[desc.type_a], ELEMENT_BYTES[desc.type_b]
    a = widest(desc.lda * bytes_a // 4, desc.stride_a * batched * bytes_a // 4, desc.align_a)
    return a, widest(desc.ldb * bytes_b // 4, desc.stride_b * batched * bytes_b // 4, desc.align_b)


def on_words(desc: GemmDesc) -> bool:
    """Return True if all rows of halves begin on words of 4 bytes, as their first one does."""
    strides = ((desc.type_a, desc.lda, desc.stride_a), (desc.type_b, desc.ldb, desc.stride_b))
    return not any(ELEMENT_BYTES[of] * n % 4 for of, ld, apart in strides for n in (ld, apart * (desc.batch > 1)))
