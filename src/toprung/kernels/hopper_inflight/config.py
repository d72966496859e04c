"""Configurations: the block's shape, its ring, and the blocks of a cluster that share a tile along K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc, widest
from toprung.kernels.base import FieldsConfig, parameter
from toprung.kernels.hopper import ceil
from toprung.kernels.record import with_includes

FOLDER = Path(__file__).parents[1] / "hopper_fp32x"
CHUNK = 32
"""Elements of K in a stage of the ring; rows and columns have a scale for each."""
REGISTERS = 65536
"""32-bit registers of an SM."""
SHARED_BYTES = 227 * 1024
"""Shared memory of an SM that its blocks may have; each takes 1 KB besides."""
AGAIN_BYTES = 4 * (17 + 34)
"""Shared memory of a consumer warp for operands of what it computes again in plain fp32, for each of K."""
LONG: Mapping[tuple[int, int], int] = {(1, 64): 11, (1, 32): 14}
"""Stages of a ring that leaves no room for a second block, where a launch has no more blocks than SMs. Else two may share an SM
while another has none: a launch may begin before the one before it has ended, and a cluster takes its SMs in one GPC."""
CLUSTERS = (1, 2, 4, 8, 16)
"""Blocks of a cluster."""
SPIN_LIMIT = 1 << 26
"""Tries after which a wait inside the kernel is an error and not for ever, seconds at least."""
TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
"""Numbers that the kernel has for types of operands."""
LARGEST_GROUP = 1 << 10
"""Rows of tiles that are walked together at most."""


@dataclass(frozen=True)
class InflightConfig(FieldsConfig):
    """A block that owns 64·CONSUMERS × BN of C at a time, and how many blocks share a tile.

    Attributes
    ----------
    STAGES : of the ring
    GROUP : rows of tiles that are walked together
    SLICES : blocks of a cluster, each with a slice of K
    """

    fixed: ClassVar[Mapping[str, int]] = {"BK": CHUNK}

    CONSUMERS: int = parameter(2, 1, name="BM", unit=64)
    BN: int = parameter(128, 64, 32)
    STAGES: int = parameter(4, 6, 8, 5, 3, *LONG.values())
    GROUP: int = parameter(8, 16, 4, 1)
    SLICES: int = parameter(*CLUSTERS)

    @property
    def BM(self) -> int:
        """Rows of C that a block owns at a time."""
        return 64 * self.CONSUMERS

    @property
    def most(self) -> int:
        """Blocks that an SM has registers for."""
        return 3 - self.CONSUMERS

    @property
    def resident(self) -> int:
        """Blocks that an SM runs at once: registers decide, or a ring so long that there is room for one."""
        return max(1, min(self.most, (SHARED_BYTES + 1024) // (self.shared_bytes + 1024)))

    @property
    def threads(self) -> int:
        """Threads of a block: a warpgroup that copies, one that splits B, and the consumers."""
        return 128 * (self.CONSUMERS + 2)

    @property
    def shared_bytes(self) -> int:
        """Shared memory: the ring on 1024 bytes; B's scales, what is known of columns, and barriers; what consumer warps have."""
        known = 2 * (16 + 2 * self.BN)  # of columns, in each phase
        ring = self.STAGES * (4 * CHUNK * (self.BM + self.BN) + 4 * self.BN + 24 + known)  # three barriers
        return 1024 + ring + 4 * self.CONSUMERS * self.spare_bytes

    @property
    def spare_bytes(self) -> int:
        """Shared memory of a consumer warp, for operands of what it computes again or for 16 rows of C on their way out."""
        again = AGAIN_BYTES * (16 if self.BN < 64 else 32)
        return max(again, 64 * (self.BN + 16)) if self.BN >= 64 and self.SLICES == 1 else again

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of a thread that copies, that splits, and of a consumer: all that the launch gave, shared out anew."""
        each = REGISTERS // (self.threads * self.most) // 8 * 8 * (self.CONSUMERS + 2)
        copier, splitter = 40, {128: 88, 64: 72, 32: 56}[self.BN]
        return copier, splitter, (each - copier - splitter) // self.CONSUMERS // 8 * 8

    def defines(self, trans_a: bool, trans_b: bool, align_a: int, align_b: int) -> dict[str, int]:
        """Return the kernel's macros for a layout of the operands and floats to which they are aligned."""
        copier, splitter, consumer = self.registers
        return {
            "ARCH_SPECIFIC": 1, "CONSUMERS": self.CONSUMERS, "BN": self.BN, "STAGES": self.STAGES, "GROUP": self.GROUP,
            "SLICES": self.SLICES, "RESIDENT": self.most, "COPIER_REGISTERS": copier, "SPLITTER_REGISTERS": splitter,
            "CONSUMER_REGISTERS": consumer, "TRANS_A": int(trans_a), "TRANS_B": int(trans_b), "ALIGN_A": align_a,
            "ALIGN_B": align_b, "SPARE_BYTES": self.spare_bytes, "SPIN_LIMIT": SPIN_LIMIT,
            DYNAMIC_SHARED: self.shared_bytes,
        }  # fmt: skip

    def refused(self) -> str:
        if (self.CONSUMERS, self.BN) not in ((2, 128), (2, 64), (2, 32), (1, 64), (1, 32)):
            return f"a block has 128×128, 128×64, 128×32, 64×64 or 64×32 of C, not {self.BM}×{self.BN}"
        if self.SLICES not in CLUSTERS or not 1 <= self.GROUP <= LARGEST_GROUP:
            return f"1, 2, 4, 8 or 16 blocks share a tile, and 1 to {LARGEST_GROUP} rows of tiles are walked together, not {self}"
        if self.STAGES < 3:
            return "one stage of the ring is filled and one split while a third is multiplied"
        if self.shared_bytes > SHARED_BYTES:
            used = f"{self.shared_bytes:,} bytes of shared memory"
            return f"{self.STAGES} stages of {self.BM}×{self.BN} take {used}; there are {SHARED_BYTES:,}"
        return ""

    @property
    def is_alone(self) -> bool:
        """True if the ring leaves no room for a second block, though an SM has registers for it."""
        return self.resident < self.most

    def __str__(self) -> str:
        alone = " alone on an SM" * self.is_alone
        return f"{self.BM}x{self.BN}x{CHUNK}{alone}" + f" in {self.SLICES} slices of K" * (self.SLICES > 1)


def aligned(desc: GemmDesc) -> tuple[int, int]:
    """Return the words of 4 bytes, 1, 2 or 4, to which every row of A, and of B, is aligned; halves must lie on words."""
    batched, words_a, words_b = desc.batch > 1, *(ELEMENT_BYTES[kind] / 4 for kind in (desc.type_a, desc.type_b))
    a = widest(int(desc.lda * words_a), int(desc.stride_a * batched * words_a), desc.align_a)
    return a, widest(int(desc.ldb * words_b), int(desc.stride_b * batched * words_b), desc.align_b)


def on_words(desc: GemmDesc) -> bool:
    """Return True if all rows of halves begin on words of 4 bytes, as their first one does."""
    a, b = (not (one % 2 or (two % 2 and desc.batch > 1)) for one, two in ((desc.lda, desc.stride_a), (desc.ldb, desc.stride_b)))
    return (a or desc.type_a == "float32") and (b or desc.type_b == "float32")


def types(desc: GemmDesc) -> dict[str, int]:
    """Return the macros for the operands' types: none for fp32."""
    found = {"A_TYPE": TYPES[desc.type_a], "B_TYPE": TYPES[desc.type_b]}
    return found if desc.is_mixed else {}


def product_source(
    config: InflightConfig, trans_a: bool = False, trans_b: bool = False, align_a: int = 4, align_b: int = 4, **more: int
) -> Source:
    """Return the kernel for a layout of the operands; ``more``: macros."""
    name = "grouped" if "GROUPED" in more else "inflight"
    title = f"inflight_{'group_' * ('GROUPED' in more)}{config.BM}x{config.BN}x{CHUNK}"
    defines = {**config.defines(trans_a, trans_b, align_a, align_b), **more}
    return Source(
        "hopper_inflight/inflight", with_includes(f'#include "{name}.cu"\n', FOLDER), "inflight", defines, "cuda", title=title
    )


def tiles(desc: GemmDesc, config: InflightConfig) -> int:
    """Return the tiles of all products."""
    return ceil(desc.M, config.BM) * ceil(desc.N, config.BN) * desc.batch


def blocks(desc: GemmDesc, config: InflightConfig, units: int) -> int:
    """Return the blocks of a launch: as many as run at once, each with tiles in turn; a cluster for each tile where K is sliced."""
    count = tiles(desc, config)
    return count * config.SLICES if config.SLICES > 1 else min(count, config.resident * units)
