"""fp32-accurate products on Hopper's matrix units: split into two fp16 terms, three products, and the guard. A problem → launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toprung.backends.base import DYNAMIC_SHARED, Buffer, Kernel, Launch, Source
from toprung.build import source_kernel
from toprung.errors import Unsupported

FOLDER = Path(__file__).parent / "ladders" / "hopper"
CHUNK = 32
"""Of K, in a stage of the ring: 32 hi and 32 lo are a row of 128 bytes."""
ROWS_BYTES = 16
"""What the splitting pass leaves for the guard of each 32 rows."""
SHARED_BYTES = 227 * 1024


@dataclass(frozen=True)
class Variant:
    """Free parameters of the product's kernel; a block owns 64·CONSUMERS × BN of C at a time.

    Attributes
    ----------
    STAGES : of the ring
    INTERVAL : chunks of 32 of K whose hi·hi stays in the matrix unit
    GROUP : rows of tiles that are walked together
    CLUSTER : blocks that share their tiles of B
    TOGETHER : cross terms and hi·hi take turns in one accumulator, which leaves registers for a wider tile
    """

    CONSUMERS: int = 2
    BN: int = 128
    STAGES: int = 6
    INTERVAL: int = 1
    GROUP: int = 8
    CLUSTER: int = 1
    TOGETHER: int = 0

    @property
    def BM(self) -> int:
        """Rows of C that a block owns at a time."""
        return 64 * self.CONSUMERS

    @property
    def shared_bytes(self) -> int:
        """The ring on 1024 bytes, and its barriers."""
        return self.STAGES * (self.BM + self.BN) * 128 + 1024 + 16 * self.STAGES

    def defines(self, **more: int) -> dict[str, int]:
        """As macros."""
        moved = self.CONSUMERS == 2  # registers change hands where the compiler could not give a thread enough
        registers = {"PRODUCER_REGISTERS": 24 * moved, "CONSUMER_REGISTERS": 240 * moved}
        return {"ARCH_SPECIFIC": 1, **asdict(self), **registers, **more}

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN} S{self.STAGES} I{self.INTERVAL} G{self.GROUP} CL{self.CLUSTER}{' T' * self.TOGETHER}"


def source(file: str, kernel: str, defines: Mapping[str, int]) -> Source:
    """A text of the ladder's folder behind the common header."""
    text = f'{(FOLDER / "hopper.cuh").read_text()}\n#line 1 "{file}"\n{(FOLDER / file).read_text()}'
    return Source(f"hopper/{kernel}", text, kernel, defines, "cuda")


def product_source(variant: Variant, **more: int) -> Source:
    """The product's kernel."""
    return source("fp32x.cu", "fp32x", {**variant.defines(**more), DYNAMIC_SHARED: variant.shared_bytes})


def split_source() -> Source:
    """The splitting pass."""
    return source("split.cu", "split", {"ARCH_SPECIFIC": 1})


def guard_source() -> Source:
    """Plain fp32 for what cannot be split."""
    return source("guard.cu", "guard", {"ARCH_SPECIFIC": 1})


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


class Product:
    """The launches of one product in a session, with their workspace.

    Attributes
    ----------
    split, multiply, guard : the launches, in order
    count : device counter (uint64) of 64×64 granules that the guard computed since it was made
    """

    def __init__(self, session: Any, problem: Any, buffers: Mapping[str, Buffer], variant: Variant, **more: int) -> None:
        if problem.batch != 1 or min(problem.M, problem.N, problem.K) < 1:
            raise Unsupported(f"{problem}: one product of at least 1×1×1")
        M, N, K = problem.M, problem.N, problem.K
        width = 2 * CHUNK * ceil(K, CHUNK)
        self.width = width
        self.split_a, self.split_b = session.allocate(2 * width * M), session.allocate(2 * width * N)
        self.exponents_a, self.exponents_b = session.allocate(4 * M), session.allocate(4 * N)
        self.summary_a, self.summary_b = (session.allocate(ROWS_BYTES * ceil(rows, 32)) for rows in (M, N))
        self.count = session.allocate(8)
        session.upload(self.count, np.zeros(1, np.uint64))
        a, b, c = (buffers[name] for name in "ABC")
        i = np.int32
        sizes, alpha, beta = (i(M), i(N), i(K)), np.float32(problem.alpha), np.float32(problem.beta)
        across = i(problem.trans[0] == "T"), i(problem.trans[1] == "N")
        units = session.device.compute_units

        def kernel(of: Source) -> Kernel:
            return source_kernel(of, session)

        self.split: Launch = session.bind(
            kernel(split_source()),
            (ceil(M, 32) + ceil(N, 32),),
            (1024,),
            (
                *sizes, a, i(problem.lda), across[0], self.split_a, self.exponents_a, self.summary_a,
                b, i(problem.ldb), across[1], self.split_b, self.exponents_b, self.summary_b,
            ),
        )  # fmt: skip
        v = variant
        tiles = ceil(M, v.BM * v.CLUSTER) * ceil(N, v.BN)
        self.multiply: Launch = session.bind(
            kernel(product_source(v, **more)),
            (min(tiles, units // v.CLUSTER) * v.CLUSTER,),
            (128 * (v.CONSUMERS + 1),),
            (
                session.tensor_map(self.split_a, M, width, (v.BM, 64)),
                session.tensor_map(self.split_b, N, width, (v.BN // v.CLUSTER, 64)),
                *sizes, alpha, self.exponents_a, self.exponents_b, self.summary_a, self.summary_b, beta, c, i(problem.ldc),
            ),
        )  # fmt: skip
        granules = ceil(M, 64) * ceil(N, 64)
        self.guard: Launch = session.bind(
            kernel(guard_source()),
            (min(2 * units, granules),),
            (256,),
            (
                *sizes, alpha, a, i(problem.lda), across[0], b, i(problem.ldb), across[1],
                beta, c, i(problem.ldc), self.summary_a, self.summary_b, self.count,
            ),
        )  # fmt: skip

    def run(self) -> None:
        """One call."""
        self.split()
        self.multiply()
        self.guard()
