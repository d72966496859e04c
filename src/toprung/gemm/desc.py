"""Descriptors of products: sizes, strides and alignments, everything that decides which kernel runs, without pointers and values.

``GemmDesc`` and ``GemvDesc`` have the same properties (``is_vector``, ``is_empty``, ``depth``, ``result``, ``skinny``, ``sizes``),
so that most callers need not tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from toprung import forks
from toprung.errors import BadSize, Unsupported

LARGEST = 2**31 - 1
"""Largest size, leading dimension and increment, in elements: kernels take them as 32-bit numbers. Extents may have 64 bits."""

ALIGNMENTS = (1, 2, 4)

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Types that A and B may have, with the bytes of an element; C is float32."""


@dataclass(frozen=True)
class Result:
    """Layout of a result: a batch of matrices.

    Attributes
    ----------
    rows, cols, batch : number of rows and columns of each matrix, and of matrices
    down, on, stride : number of elements from one row, one column, one matrix to the next; negative ones go backwards
    """

    rows: int
    cols: int
    batch: int
    down: int
    on: int
    stride: int

    @forks.cached_property
    def elements(self) -> int:
        """Number of elements of all matrices."""
        return self.rows * self.cols * self.batch

    @property
    def tight(self) -> bool:
        """True if elements follow each other without a gap, row by row."""
        return (
            self.on == 1
            and (self.rows == 1 or self.down == self.cols)
            and (self.batch == 1 or self.stride == self.rows * self.cols)
        )


@dataclass(frozen=True)
class Skinny:
    """A product with a short side, from the large operand's point of view: C[s][l] = Σ Y[s][k]·X, X as L×K or K×L.

    Attributes
    ----------
    swapped : True if the large operand X is B, False if it is A
    by_rows : True if X's rows run along K, False if they run along L
    length, few, depth : L, the short side, and K, in elements
    batch : number of independent products
    ld, stride_large : number of elements from one row of X, one matrix X, to the next
    align_large, align_small : floats to which the first element of X, of Y, is aligned: 1, 2 or 4
    down, on, stride_small : number of elements of Y from one s, one k, one product to the next
    type_large, type_small : types of the elements of X and Y
    """

    swapped: bool
    by_rows: bool
    length: int
    few: int
    depth: int
    batch: int
    ld: int
    stride_large: int
    align_large: int
    down: int
    on: int
    stride_small: int
    align_small: int
    type_large: str = "float32"
    type_small: str = "float32"

    @forks.cached_property
    def widths(self) -> tuple[int, int]:
        """Width in floats of an access to X, and to Y: X's width if rows of X run along K and Y lies so too, else 1."""
        if not self.by_rows:
            return widest(self.length, self.ld, self.stride_large, self.align_large), 1
        wide = widest(self.ld, self.stride_large, self.align_large)
        numbers = (self.down if self.few > 1 else 0, self.stride_small, self.align_small)
        return wide, wide if self.on == 1 and all(n % wide == 0 for n in numbers) else 1


@dataclass(frozen=True)
class GemmDesc:
    """Descriptor of C = α·op(A)·op(B) + β·C, row-major: op(A) is M×K, op(B) K×N, C M×N.

    Attributes
    ----------
    M, N, K : sizes in elements; 0 is allowed
    batch : number of independent products
    trans_a, trans_b : True if the operand is stored transposed (A as K×M, B as N×K)
    lda, ldb, ldc : number of elements from one stored row to the next; 0 for rows without a gap
    stride_a, stride_b, stride_c : number of elements from one matrix of the batch to the next; 0 for an A or B that all share
    align_a, align_b, align_c : floats to which the operand's first element is aligned: 1, 2 or 4
    beta_zero : True if β will be 0; a hint for the selection and the kernel, which reads β itself
    type_a, type_b : types of A's and B's elements, of ``ELEMENT_BYTES``

    Raises
    ------
    BadSize
        a size, stride, alignment or type that makes no sense, or matrices of C that overlap
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
    type_a: str = field(default="float32", repr=False)
    type_b: str = field(default="float32", repr=False)

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

    is_vector: ClassVar[Literal[False]] = False

    @forks.cached_property
    def is_empty(self) -> bool:
        """True if there is nothing to multiply."""
        return not (self.M and self.N and self.K)

    @property
    def is_mixed(self) -> bool:
        """True if A or B has halves."""
        return (self.type_a, self.type_b) != ("float32", "float32")

    @property
    def element_bytes(self) -> tuple[int, int]:
        """Bytes of an element of A, and of B."""
        return ELEMENT_BYTES[self.type_a], ELEMENT_BYTES[self.type_b]

    @forks.cached_property
    def bytes_read(self) -> int:
        """Bytes of A and B, those of a matrix that the batch shares counted once."""
        a, b = (self.batch if stride else 1 for stride in (self.stride_a, self.stride_b))
        return self.K * (self.M * a * ELEMENT_BYTES[self.type_a] + self.N * b * ELEMENT_BYTES[self.type_b])

    @property
    def depth(self) -> int:
        """Number of terms of each sum, K."""
        return self.K

    @forks.cached_property
    def result(self) -> Result:
        """Layout of C."""
        return Result(self.M, self.N, self.batch, self.ldc, 1, self.stride_c)

    @forks.cached_property
    def skinny(self) -> Skinny:
        """Product from its large operand's point of view: the short side is few rows or few columns."""
        a, b = (self.lda, self.stride_a, self.align_a), (self.ldb, self.stride_b, self.align_b)
        if self.M < self.N:
            down, on = (1, self.lda) if self.trans_a else (self.lda, 1)
            return Skinny(True, self.trans_b, self.N, self.M, self.K, self.batch, *b, down, on, *a[1:], self.type_b, self.type_a)
        down, on = (self.ldb, 1) if self.trans_b else (1, self.ldb)
        return Skinny(False, not self.trans_a, self.M, self.N, self.K, self.batch, *a, down, on, *b[1:], self.type_a, self.type_b)

    @forks.cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and the batch, at least 1 each, as the store has them."""
        return max(1, self.M), max(1, self.N), max(1, self.K), self.batch

    @forks.cached_property
    def rows_read(self) -> int:
        """Number of rows of A and columns of B, those of a matrix that the batch shares counted once."""
        return self.M * (self.batch if self.stride_a else 1) + self.N * (self.batch if self.stride_b else 1)

    @forks.cached_property
    def index32(self) -> bool:
        """True if offsets within each matrix, in elements, fit 31 bits."""
        return max(*self.extents, self.M * self.N) < 2**31

    @forks.cached_property
    def widths(self) -> tuple[int, int, int]:
        """Width in floats of an access to A, B and C: each access lies wholly inside a row or wholly outside."""
        (_, a), (_, b), (_, c) = self.stored
        return (
            widest(a, self.lda, self.stride_a, self.align_a),
            widest(b, self.ldb, self.stride_b, self.align_b),
            widest(c, self.ldc, self.stride_c, self.align_c),
        )

    @forks.cached_property
    def access_class(self) -> str:
        """Layout, and width in floats of an access to A, B and C: ``NN v444``."""
        return f"{self.trans} v{''.join(map(str, self.widths))}"

    @forks.cached_property
    def trans(self) -> str:
        """Name of the layout: ``NN``, ``NT``, ``TN`` or ``TT``."""
        return "NT"[self.trans_a] + "NT"[self.trans_b]

    @forks.cached_property
    def stored(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Rows and columns of A, B and C as they lie in memory."""
        a, b = (self.M, self.K), (self.K, self.N)
        return a[::-1] if self.trans_a else a, b[::-1] if self.trans_b else b, (self.M, self.N)

    @property
    def extents(self) -> tuple[int, int, int]:
        """Number of elements from the first to the last of one matrix A, B and C, gaps counted."""
        shapes = zip(self.stored, (self.lda, self.ldb, self.ldc), strict=True)
        a, b, c = [(rows - 1) * ld + cols if rows and cols else 0 for (rows, cols), ld in shapes]
        return a, b, c

    @forks.cached_property
    def flops(self) -> int:
        """Number of floating-point operations: 2·M·N·K for each product of the batch."""
        return 2 * self.batch * self.M * self.N * self.K

    def __str__(self) -> str:
        batch = f" ×{self.batch}" if self.batch > 1 else ""
        types = f" {self.type_a}·{self.type_b}" if self.is_mixed else ""
        return f"{self.M}×{self.N}×{self.K} {self.trans}{batch}{types}"


@dataclass(frozen=True)
class GemvDesc:
    """Descriptor of y = α·op(A)·x + β·y, A row-major M×N as stored; op(A) is A or, with ``trans``, its transpose.

    Attributes
    ----------
    M, N : rows and columns of A as stored; 0 is allowed
    trans : True if op(A) is the transpose of A
    lda : number of elements from one row of A to the next; 0 for rows without a gap
    incx, incy : elements from one of x or y to the next; may be negative, not 0. Offsets point to the first in order of use
    align_a, align_x : floats to which the first element is aligned: 1, 2 or 4
    beta_zero : True if β will be 0

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

    is_vector: ClassVar[Literal[True]] = True
    batch: ClassVar[int] = 1
    element_bytes: ClassVar[tuple[int, int]] = (4, 4)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to multiply."""
        return not (self.M and self.N)

    @property
    def result(self) -> Result:
        """Layout of y, as a column."""
        return Result(self.length, 1, 1, self.incy, 1, 0)

    @property
    def skinny(self) -> Skinny:
        """Product from A's point of view: x is the short side."""
        large = self.lda, 0, self.align_a
        return Skinny(False, not self.trans, self.length, 1, self.depth, 1, *large, 0, self.incx, 0, self.align_x)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, 1 and 1, at least 1 each, as the store has them."""
        return max(1, self.M), max(1, self.N), 1, 1

    @property
    def access_class(self) -> str:
        """Layout, and width in floats of an access to A: ``T v4``; with ``strided`` if x is not contiguous."""
        wide, _ = self.skinny.widths
        return f"{'T' if self.trans else 'N'} v{wide}{'' if self.incx == 1 else ' strided'}"

    @property
    def length(self) -> int:
        """Number of elements of y."""
        return self.N if self.trans else self.M

    @property
    def depth(self) -> int:
        """Number of terms of each sum: the elements of x."""
        return self.M if self.trans else self.N

    @property
    def rows_read(self) -> int:
        """Number of rows of op(A), and x as one more."""
        return self.length + 1

    @property
    def extent(self) -> int:
        """Number of elements from A's first to its last, gaps counted."""
        return (self.M - 1) * self.lda + self.N if self.M and self.N else 0

    @property
    def flops(self) -> int:
        """Number of floating-point operations: 2·M·N."""
        return 2 * self.M * self.N

    def __str__(self) -> str:
        return f"{self.M}×{self.N} {'T' if self.trans else 'N'}·x"


Desc = GemmDesc | GemvDesc

ALIGNED = 4
"""Floats to which memory of toprung's own sessions is aligned."""


def described(shape: Mapping[str, Any], align: int = ALIGNED) -> Desc:
    """Return the descriptor of a problem given as in stores and result files: matrices of a batch lie one below the other.

    Raises
    ------
    Unsupported
        another routine's problem
    """
    if shape["routine"] == "gemv":
        return GemvDesc(
            shape["M"], shape["N"], shape.get("trans") == "T", shape.get("lda") or 0, shape.get("incx", 1), shape.get("incy", 1),
            align, align, shape.get("beta", 0.0) == 0,
        )  # fmt: skip
    if shape["routine"] != "gemm":
        raise Unsupported(f"the library computes gemm and gemv, not {shape['routine']}")
    trans, batch = shape.get("trans", "NN"), shape.get("batch", 1)
    made = GemmDesc(
        shape["M"], shape["N"], shape["K"], 1, trans[0] == "T", trans[1] == "T", shape.get("lda") or 0, shape.get("ldb") or 0,
        shape.get("ldc") or 0, align_a=align, align_b=align, align_c=align, beta_zero=shape.get("beta", 0.0) == 0,
        type_a=shape.get("type_a", "float32"), type_b=shape.get("type_b", "float32"),
    )  # fmt: skip
    if batch == 1:
        return made
    lds = (made.lda, made.ldb, made.ldc)
    a, b, c = (rows * ld for (rows, _), ld in zip(made.stored, lds, strict=True))
    return replace(made, batch=batch, stride_a=a, stride_b=b, stride_c=c)


def widest(*numbers: int) -> int:
    """Return the widest access, in floats, that divides all numbers: 4, 2 or 1."""
    bits = 0
    for number in numbers:
        bits |= number
    return 1 if bits & 1 else 2 if bits & 2 else 4


STRIDES = ("stride_a", "stride_b", "stride_c")
LEAST = {"batch": 1, "incx": -LARGEST, "incy": -LARGEST}
FLAGS = ("trans", "trans_a", "trans_b", "beta_zero")
TYPES = ("type_a", "type_b")


def _check(call: Desc) -> None:
    """Raise BadSize unless every number is an integer within its limits. Every call runs this: it looks nothing up twice."""
    for name, value in call.__dict__.items():
        if name in FLAGS:
            if type(value) is not bool:
                object.__setattr__(call, name, bool(value))
            continue
        if name in TYPES:
            if value not in ELEMENT_BYTES:
                raise BadSize(f"{name} must be one of {', '.join(ELEMENT_BYTES)}, not {value!r}")
            continue
        if type(value) is not int:
            raise BadSize(f"{name} must be an integer, not {value!r}")
        lowest, highest = LEAST.get(name, 0), 2**62 if name in STRIDES else LARGEST
        if not lowest <= value <= highest:
            raise BadSize(f"{name} must be from {lowest} to {highest}, not {value}")
        if name.startswith("align") and value not in ALIGNMENTS:
            raise BadSize(f"{name} must be 1, 2 or 4 floats, not {value}")
