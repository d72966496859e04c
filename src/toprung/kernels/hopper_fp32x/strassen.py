"""A level of Strassen as a driver over the product with both operands split: seven products of sums of quarters in one launch.

Each piece of a product takes four launches: two splitting passes, which form the sums, the products, and what makes C.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from toprung.backends.base import DYNAMIC_SHARED, Session, Source
from toprung.backends.plan import ALPHA, BETA, WORKSPACE, A, Address, B, C, KernelLaunch, Map, Plan, whole
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import Launches
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter, ceil
from toprung.kernels.hopper_fp32x.config import CHUNK, Fp32xConfig
from toprung.kernels.hopper_fp32x.sizes import ROW_BYTES, terms_bytes, width
from toprung.kernels.hopper_fp32x.sources import PARTS, PATCH_BYTES, SPLIT_THREADS, source, spread

Signs = tuple[tuple[int, ...], ...]

PRODUCTS = 7
"""Products of a level."""
SMALLEST = 8192
"""Least M, N and K: below, what the splitting pass and the last launch take more is what a product less saves."""
LONGEST = 1 << 14
"""Most M, N and K of a piece: its workspace grows with the square, and half a row must fit a block's registers."""
UNIT = 32
"""Halves are multiples of this many rows, columns or elements of K."""
ALONG = 16
"""Elements of a sum that a thread of the splitting pass holds where K runs along memory."""
PLACES = 16, 32
"""Rows and columns of a quarter of C that a work-group of the last launch makes."""


@dataclass(frozen=True)
class Form:
    """A way to multiply 2×2 blocks with seven products: C_q = Σ c[q][p]·(Σ a[p][i]·A_i)·(Σ b[p][j]·B_j).

    Attributes
    ----------
    a, b : for each product a sign for each quarter, 11, 12, 21, 22; 0 where it takes no part
    c : for each quarter of C a sign for each product
    """

    name: str
    a: Signs
    b: Signs
    c: Signs

    def signs(self, which: str) -> int:
        """Return the table of ``"a"``, ``"b"`` or ``"c"`` as the kernels have it.

        A sign is two bits, 1 for +1 and 2 for −1, the first the lowest. Quarters go by rows of A and by columns of B first:
        11, 12, 21, 22 of A and 11, 21, 12, 22 of B.
        """
        rows: Signs = getattr(self, which)
        order = (0, 2, 1, 3) if which == "b" else range(len(rows[0]))
        return sum(row[i] % 3 << 2 * (len(row) * n + place) for n, row in enumerate(rows) for place, i in enumerate(order))


STRASSEN = Form(
    "Strassen",
    ((1, 0, 0, 1), (0, 0, 1, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 0), (-1, 0, 1, 0), (0, 1, 0, -1)),
    ((1, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, -1), (-1, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0), (0, 0, 1, 1)),
    ((1, 0, 0, 1, -1, 0, 1), (0, 0, 1, 0, 1, 0, 0), (0, 1, 0, 1, 0, 0, 0), (1, -1, 1, 0, 0, 1, 0)),
)
"""Sums of two quarters at most: 12 quarters of each operand are read."""


def half(n: int) -> int:
    """Return the first half of a side; the second is as long, with zeros behind the operand's end."""
    return UNIT * ceil(n, 2 * UNIT)


@dataclass(frozen=True)
class Piece:
    """A product that is computed at a time: rows from m, columns from n, and K from k on, which is added to C where k > 0."""

    m: int
    rows: int
    n: int
    cols: int
    k: int
    depth: int

    @property
    def bytes(self) -> tuple[int, int, int]:
        """Bytes of the workspace for A's terms, B's, and the seven products."""
        m, n, k = half(self.rows), half(self.cols), half(self.depth)
        return terms_bytes(PRODUCTS * m, k), terms_bytes(PRODUCTS * n, k), whole(4 * PRODUCTS * m * n)


def pieces(desc: GemmDesc, longest: int = LONGEST) -> list[Piece]:
    """Return the pieces of a product, each side at most ``longest``; those of one place in C follow each other."""

    def cut(n: int) -> list[tuple[int, int]]:
        part = UNIT * ceil(ceil(n, ceil(n, longest)), UNIT)  # equal parts, whole ``UNIT``s but the last
        return [(begin, min(part, n - begin)) for begin in range(0, n, part)]

    return [Piece(*m, *n, *k) for m, n, k in itertools.product(cut(desc.M), cut(desc.N), cut(desc.K))]


def workspace_bytes(desc: GemmDesc, longest: int = LONGEST) -> int:
    """Return the scratch memory of a product."""
    return max((sum(p.bytes) for p in pieces(desc, longest)), default=0) if desc.M and desc.N else 0


def sums_source(signs: int, across: bool, cluster: int = 1, corrects: bool = False) -> Source:
    """Return the splitting pass of one operand.

    Parameters
    ----------
    cluster : blocks that have the rows together whose K runs across memory
    corrects : True for B, whose lo carries the share that Tensor Cores truncate
    """
    shape = {"ACROSS": int(across), "ALONG": ALONG, "CLUSTER": cluster if across else 1, "HELD": 32}
    defines = {"SIGNS": signs, "CORRECTS": int(corrects), **shape, DYNAMIC_SHARED: PATCH_BYTES if across else 0}
    return source("sums", defines, "rows.cuh", "split.cu", "sums.cu", family="strassen")


def product_source(config: Fp32xConfig) -> Source:
    """Return the kernel of the products, without its guard."""
    title = f"{config.BM}x{config.BN}x{CHUNK}"
    return source("fp32x", config.defines(), *PARTS, "unguarded.cuh", "fp32x.cu", family="strassen", title=title)


def combine_source(form: Form = STRASSEN) -> Source:
    """Return the kernel that makes C of the products."""
    return source("combine", {"SIGNS_C": form.signs("c")}, family="strassen")


def launches(
    session: Session, call: GemmDesc, config: Fp32xConfig | None = None, form: Form = STRASSEN, longest: int = LONGEST
) -> Launches:  # fmt: skip
    """Return the launches of a product, four for each of its pieces."""
    if call.batch > 1:
        raise Unsupported("Strassen's form takes one product at a time, not a batch")
    if longest > LONGEST:
        raise Unsupported(f"a piece of Strassen's form has sides up to {LONGEST}, not {longest}")
    count = Counter(session)
    every = pieces(call, longest) if call.M and call.N else []
    made = [launch for p in every for launch in _of_piece(session, call, p, config or Fp32xConfig(), form, count)]
    return Launches(session, Plan(made, workspace_bytes=workspace_bytes(call, longest), kept=(count,)), count.read)


def _of_piece(session: Session, call: GemmDesc, p: Piece, v: Fp32xConfig, form: Form, count: Counter) -> list[KernelLaunch]:
    """Return the launches of a piece: both splitting passes, seven products, and what makes C."""
    units, i, long = session.device.compute_units, np.int32, np.int64
    m, n, k = half(p.rows), half(p.cols), half(p.depth)
    bytes_a, bytes_b, _ = p.bytes
    rows_a, rows_b = PRODUCTS * m, PRODUCTS * n
    # the terms of all rows, then what stands beside them, see ``terms_bytes``
    terms_a, terms_b, products = Address(WORKSPACE), Address(WORKSPACE, bytes_a), Address(WORKSPACE, bytes_a + bytes_b)
    info_a, info_b = (
        Address(WORKSPACE, end - whole(ROW_BYTES * rows)) for end, rows in ((bytes_a, rows_a), (bytes_a + bytes_b, rows_b))
    )
    across_a, across_b = call.trans_a, not call.trans_b
    a = Address(A, 4 * (p.m * (1 if across_a else call.lda) + p.k * (call.lda if across_a else 1)))
    b = Address(B, 4 * (p.n * (1 if across_b else call.ldb) + p.k * (call.ldb if across_b else 1)))
    c = Address(C, 4 * (p.m * call.ldc + p.n))

    def splitting(which: str, across: bool, places: tuple[Address, ...], side: int, ld: int) -> KernelLaunch:
        cluster, lanes = spread(k, across)[0], 32
        while lanes < SPLIT_THREADS and lanes * ALONG < k:
            lanes *= 2
        groups = half(side) // 32 * cluster if across else ceil(half(side) * lanes, SPLIT_THREADS)
        kernel = kernel_of(session, sums_source(form.signs(which), across, cluster, which == "b"))
        fixed = (i(side), i(p.depth), i(half(side)), i(k), i(lanes), long(ld))
        return KernelLaunch("sums", kernel, (PRODUCTS * groups,), (SPLIT_THREADS,), (*places, *fixed))

    unread = long(0), long(0), i(0)  # where A and B lie as they were given
    multiply = KernelLaunch(
        "multiply", kernel_of(session, product_source(v)), (min(ceil(m, v.BM) * ceil(n, v.BN) * PRODUCTS, units),),
        (128 * (v.CONSUMERS + 1),),
        (
            np.uint64(0), np.uint64(0), products, np.float32(1.0), np.float32(0.0), info_a, info_b, count.buffer,
            Map(WORKSPACE, 0, rows_a, width(k), 2 * width(k), (v.BM, 64), "fp16"),
            Map(WORKSPACE, bytes_a, rows_b, width(k), 2 * width(k), (v.BN, 64), "fp16"),
            i(m), i(n), i(k), i(PRODUCTS), i(1), i(k), i(m), i(n), i(0), i(0), *unread, *unread, i(n), long(m * n),
        ),
    )  # fmt: skip
    combine = KernelLaunch(
        "combine", kernel_of(session, combine_source(form)), (ceil(m, PLACES[0]) * ceil(n, PLACES[1]),), (128,),
        (
            a, b, c, ALPHA, np.float32(1.0) if p.k else BETA, products, count.buffer, i(p.rows), i(p.cols), i(p.depth), i(m), i(n),
            long(call.lda), i(across_a), long(call.ldb), i(across_b), i(call.ldc),
        ),
    )  # fmt: skip
    return [
        splitting("a", across_a, (a, terms_a, info_a), p.rows, call.lda),
        splitting("b", across_b, (b, terms_b, info_b), p.cols, call.ldb),
        multiply,
        combine,
    ]
