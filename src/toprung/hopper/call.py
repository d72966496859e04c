"""What fp32x is asked for, a ``Call``, and with which tiles it is computed, a ``Variant`` of the product's kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from toprung.errors import BadSize

SHARED_BYTES = 227 * 1024
PLAIN_BYTES = 2 * 16 * 68 * 4
"""Shared memory of a consumer for what it computes again in plain fp32."""
LARGEST_GROUP = 1 << 10
"""Rows of tiles that are walked together at most."""
TWICE = 1024
"""K from which on the 128 x 64 tile leaves two chunks in the matrix unit: its error on U(0, 1) is half of a plain chain's there."""


class Call(Protocol):
    """A product without its pointers and scalars, as ``toprung.blas.call.GemmCall`` describes it."""

    @property
    def M(self) -> int:
        """Rows of C."""

    @property
    def N(self) -> int:
        """Columns of C."""

    @property
    def K(self) -> int:
        """Length of the sums."""

    @property
    def batch(self) -> int:
        """Independent products."""

    @property
    def trans_a(self) -> bool:
        """Whether A is stored K×M."""

    @property
    def trans_b(self) -> bool:
        """Whether B is stored N×K."""

    @property
    def lda(self) -> int:
        """Elements from one stored row of A to the next."""

    @property
    def ldb(self) -> int:
        """Of B."""

    @property
    def ldc(self) -> int:
        """Of C."""

    @property
    def stride_a(self) -> int:
        """Elements from one A to the next; 0: the same one each time."""

    @property
    def stride_b(self) -> int:
        """From one B."""

    @property
    def stride_c(self) -> int:
        """From one C."""


@dataclass(frozen=True)
class Product:
    """The plainest ``Call``; leading dimensions of 0 are tight."""

    M: int
    N: int
    K: int
    batch: int = 1
    trans_a: bool = False
    trans_b: bool = False
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0

    def __post_init__(self) -> None:
        tight = {"lda": self.M if self.trans_a else self.K, "ldb": self.K if self.trans_b else self.N, "ldc": self.N}
        for name, least in tight.items():
            object.__setattr__(self, name, getattr(self, name) or max(least, 1))
            if getattr(self, name) < least:
                raise BadSize(f"{name} = {getattr(self, name)} is shorter than a row of {least}")

    @staticmethod
    def of(problem: Any) -> Product:
        """A problem of the tests and benchmarks (``toprung.routines.gemm.Gemm``): matrices of a batch lie one below the other."""
        (a, lda), (b, ldb), (c, ldc) = ((m.rows // problem.batch * m.ld, m.ld) for m in problem.matrices)
        across = problem.trans[0] == "T", problem.trans[1] == "T"
        return Product(problem.M, problem.N, problem.K, problem.batch, *across, lda, ldb, ldc, a, b, c)


@dataclass(frozen=True)
class Variant:
    """Free parameters of the product's kernel; a block owns 64·CONSUMERS × BN of C at a time.

    Attributes
    ----------
    STAGES : of the ring
    INTERVAL : chunks of 32 of K whose hi·hi stays in the matrix unit
    GROUP : rows of tiles that are walked together
    """

    CONSUMERS: int = 2
    BN: int = 128
    STAGES: int = 6
    INTERVAL: int = 1
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
        """As macros."""
        moved = self.CONSUMERS == 2  # registers change hands where the compiler could not give a thread enough
        registers = {"PRODUCER_REGISTERS": 24 * moved, "CONSUMER_REGISTERS": 240 * moved}
        return {"ARCH_SPECIFIC": 1, **asdict(self), **registers, **more}

    def refused(self) -> str:
        """Why no kernel is built with these parameters, as a sentence; empty where one is."""
        if self.CONSUMERS not in (1, 2) or self.BN not in (32, 64, 128):
            return f"fp32x has tiles of 64 or 128 rows and 32, 64 or 128 columns, not of {self.BM}×{self.BN}"
        if self.INTERVAL not in (1, 2) or not 1 <= self.GROUP <= LARGEST_GROUP:
            return (
                f"fp32x leaves 1 or 2 chunks in the matrix unit and walks 1 to {LARGEST_GROUP} rows of tiles together, not {self}"
            )
        if self.INTERVAL > 1 and self.BN > 64:
            return "fp32x with more than a chunk in the matrix unit has no registers left for 128 columns"
        if self.STAGES < 2:
            return "fp32x fills one stage of its ring while it multiplies another"
        if (used := self.shared_bytes + self.CONSUMERS * PLAIN_BYTES) > SHARED_BYTES:
            return f"{self.STAGES} stages of {self.BM}×{self.BN} take {used:,} bytes of shared memory; there are {SHARED_BYTES:,}"
        return ""

    def unfit(self, call: Call) -> str:
        """Why it is not as accurate as fp32 on a call, empty where it is."""
        if self.INTERVAL > 1 and call.K < TWICE:
            return f"two chunks may stay in the matrix unit from K = {TWICE} on"
        return ""

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN} S{self.STAGES} I{self.INTERVAL} G{self.GROUP}"
