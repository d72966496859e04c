"""A product of matrices in device memory without its pointers and values: everything that decides which kernel runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from toprung.errors import BadSize

LARGEST = 2**31 - 1
"""Largest size, leading dimension and increment: kernels take them as 32-bit numbers. Extents may have 64 bits."""

ALIGNMENTS = (1, 2, 4)


@dataclass(frozen=True)
class GemmCall:
    """C = α·op(A)·op(B) + β·C, row-major: op(A) is M×K, op(B) K×N, C M×N.

    Attributes
    ----------
    M, N, K : sizes; 0 is allowed
    batch : independent products
    trans_a, trans_b : whether the operand is stored transposed (A as K×M, B as N×K)
    lda, ldb, ldc : elements from one stored row to the next; 0: tight
    stride_a, stride_b, stride_c : elements from one matrix of the batch to the next; 0 for A or B: the same one each time
    align_a, align_b, align_c : floats to which the operand's first element is aligned: 1, 2 or 4
    beta_zero : whether β will be 0; a hint for the choice, the kernels go by β itself

    Raises
    ------
    BadSize
        a size, stride or alignment that makes no sense, or matrices of C that overlap
    """

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
    align_a: int = 1
    align_b: int = 1
    align_c: int = 1
    beta_zero: bool = True

    def __post_init__(self) -> None:
        _check(self)
        for name, given, (rows, cols) in zip(("lda", "ldb", "ldc"), (self.lda, self.ldb, self.ldc), self.stored, strict=True):
            if not given:
                object.__setattr__(self, name, cols or 1)
            elif rows > 1 and given < cols:
                raise BadSize(f"{name} = {given} is shorter than a row of {cols}")
        if self.batch > 1 and 0 < self.M * self.N and self.stride_c < self.extents[2]:
            # interleaved matrices could be told apart, but nobody lays results out like that
            raise BadSize(f"stride_c = {self.stride_c}: the {self.batch} matrices of C must not overlap, {self.extents[2]} apart")

    @property
    def trans(self) -> str:
        """``NN``, ``NT``, ``TN`` or ``TT``."""
        return "NT"[self.trans_a] + "NT"[self.trans_b]

    @property
    def stored(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Rows and columns of A, B and C as they lie in memory."""
        a, b = (self.M, self.K), (self.K, self.N)
        return a[::-1] if self.trans_a else a, b[::-1] if self.trans_b else b, (self.M, self.N)

    @property
    def extents(self) -> tuple[int, int, int]:
        """Elements from the first to the last of one matrix A, B and C, gaps counted."""
        return tuple(  # type: ignore[return-value]
            (rows - 1) * ld + cols if rows and cols else 0
            for (rows, cols), ld in zip(self.stored, (self.lda, self.ldb, self.ldc), strict=True)
        )

    @property
    def flops(self) -> int:
        """2·M·N·K, for each product of the batch."""
        return 2 * self.batch * self.M * self.N * self.K

    def __str__(self) -> str:
        batch = f" ×{self.batch}" if self.batch > 1 else ""
        return f"{self.M}×{self.N}×{self.K} {self.trans}{batch}"


@dataclass(frozen=True)
class GemvCall:
    """y = α·op(A)·x + β·y, A row-major M×N as stored; op(A) is A or, with ``trans``, its transpose.

    Attributes
    ----------
    lda : elements from one row of A to the next; 0: tight
    incx, incy : elements from one of x or y to the next; may be negative, not 0. Offsets point to the first in order of use
    align_a, align_x : floats to which the first element is aligned: 1, 2 or 4
    beta_zero : whether β will be 0

    Raises
    ------
    BadSize
        a size, increment or alignment that makes no sense
    """

    M: int
    N: int
    trans: bool = False
    lda: int = 0
    incx: int = 1
    incy: int = 1
    align_a: int = 1
    align_x: int = 1
    beta_zero: bool = True

    def __post_init__(self) -> None:
        _check(self)
        if self.M > 1 and self.lda and self.lda < self.N:
            raise BadSize(f"lda = {self.lda} is shorter than a row of {self.N}")
        object.__setattr__(self, "lda", self.lda or max(self.N, 1))
        if not self.incx or not self.incy:
            raise BadSize("incx and incy must not be 0")

    @property
    def length(self) -> int:
        """Elements of y."""
        return self.N if self.trans else self.M

    @property
    def depth(self) -> int:
        """Elements of x: terms of each sum."""
        return self.M if self.trans else self.N

    @property
    def extent(self) -> int:
        """Elements from A's first to its last."""
        return (self.M - 1) * self.lda + self.N if self.M and self.N else 0

    @property
    def flops(self) -> int:
        """2·M·N."""
        return 2 * self.M * self.N

    def __str__(self) -> str:
        return f"{self.M}×{self.N} {'T' if self.trans else 'N'}·x"


Call = GemmCall | GemvCall


def widest(*numbers: int) -> int:
    """The widest access, in floats, that divides all numbers."""
    return next(w for w in (4, 2, 1) if all(n % w == 0 for n in numbers))


@functools.lru_cache(1024)
def widths(call: GemmCall) -> tuple[int, int, int]:
    """Floats of an access to A, B and C: so many that each access lies wholly inside a row or outside."""
    along = [cols for _, cols in call.stored]
    lds, strides = (call.lda, call.ldb, call.ldc), (call.stride_a, call.stride_b, call.stride_c)
    aligned = (call.align_a, call.align_b, call.align_c)
    a, b, c = (widest(*four) for four in zip(along, lds, strides, aligned, strict=True))
    return a, b, c


STRIDES = ("stride_a", "stride_b", "stride_c")
LEAST = {"batch": 1, "incx": -LARGEST, "incy": -LARGEST}
FLAGS = ("trans", "trans_a", "trans_b", "beta_zero")


def _check(call: Call) -> None:
    """Every number an integer within its limits; this is on the way of every call, so it looks nothing up twice."""
    for name, value in call.__dict__.items():
        if name in FLAGS:
            if type(value) is not bool:
                object.__setattr__(call, name, bool(value))
            continue
        if type(value) is not int:
            raise BadSize(f"{name} must be an integer, not {value!r}")
        lowest, highest = LEAST.get(name, 0), 2**62 if name in STRIDES else LARGEST
        if not lowest <= value <= highest:
            raise BadSize(f"{name} must be from {lowest} to {highest}, not {value}")
        if name.startswith("align") and value not in ALIGNMENTS:
            raise BadSize(f"{name} must be 1, 2 or 4 floats, not {value}")
