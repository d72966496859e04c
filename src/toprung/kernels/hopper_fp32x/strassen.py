"""One level of Strassen over split operands: seven products of sums of quarters in one launch.

Four launches: two splitting passes, which form the sums, the products, and the pass that forms C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toprung.backends.base import DYNAMIC_SHARED, Session, Source
from toprung.backends.plan import ALPHA, BETA, WORKSPACE, A, Address, B, C, KernelLaunch, Plan, whole
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import Launches
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter, ceil
from toprung.kernels.hopper_fp32x.config import K_BLOCK, Fp32xConfig
from toprung.kernels.hopper_fp32x.launches import NONE, beside, terms_map
from toprung.kernels.hopper_fp32x.sizes import terms_bytes
from toprung.kernels.hopper_fp32x.sources import PARTS, PATCH_BYTES, SPLIT_THREADS, source, spread

Signs = tuple[tuple[int, ...], ...]

PRODUCTS = 7
"""Products of a level."""
SMALLEST = 8192
"""Least M, N and K: below, what the splitting pass and the last launch take more is what a product less saves."""
LONGEST = 1 << 14
"""Most M, N and K: the workspace grows with the square, and half a row must fit a block's registers."""
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
    title = f"{config.BM}x{config.BN}x{K_BLOCK}"
    return source("fp32x", config.defines(), *PARTS, "unguarded.cuh", "fp32x.cu", family="strassen", title=title)


def combine_source(form: Form = STRASSEN) -> Source:
    """Return the kernel that makes C of the products."""
    return source("combine", {"SIGNS_C": form.signs("c")}, family="strassen")


def launches(session: Session, call: GemmDesc, config: Fp32xConfig | None = None, form: Form = STRASSEN) -> Launches:
    """Return a product's launches: both splitting passes, the seven products, and the pass that forms C."""
    if call.batch > 1 or max(call.M, call.N, call.K) > LONGEST:
        raise Unsupported(f"Strassen's form takes one product with sides up to {LONGEST}")
    units, i, long, v, count = session.device.compute_units, np.int32, np.int64, config or Fp32xConfig(), Counter(session)
    m, n, k = half(call.M), half(call.N), half(call.K)
    rows_a, rows_b, across_a, across_b = PRODUCTS * m, PRODUCTS * n, call.trans_a, not call.trans_b
    bytes_a, bytes_b = terms_bytes(rows_a, k), terms_bytes(rows_b, k)
    products = Address(WORKSPACE, bytes_a + bytes_b)
    # the terms of all rows, then what stands beside them, see ``terms_bytes``
    terms_a, terms_b = beside(Address(WORKSPACE), rows_a, k), beside(Address(WORKSPACE, bytes_a), rows_b, k)

    def summing(which: str, across: bool, operand: int, terms: tuple[Address, Address], side: int, ld: int) -> KernelLaunch:
        cluster, lanes = spread(k, across), 32
        while lanes < SPLIT_THREADS and lanes * ALONG < k:
            lanes *= 2
        groups = half(side) // 32 * cluster if across else ceil(half(side) * lanes, SPLIT_THREADS)
        kernel = kernel_of(session, sums_source(form.signs(which), across, cluster, which == "b"))
        fixed = (i(side), i(call.K), i(half(side)), i(k), i(lanes), long(ld))
        return KernelLaunch("sums", kernel, (PRODUCTS * groups,), (SPLIT_THREADS,), (Address(operand), *terms, *fixed))

    unread = long(0), long(0), i(0)  # where A and B lie as they were given
    multiply = KernelLaunch(
        "multiply", kernel_of(session, product_source(v)), (min(ceil(m, v.BM) * ceil(n, v.BN) * PRODUCTS, units),), (v.threads,),
        (
            *NONE, products, np.float32(1.0), np.float32(0.0), terms_a[1], terms_b[1], count.buffer,
            terms_map(terms_a[0], rows_a, k, v.BM), terms_map(terms_b[0], rows_b, k, v.BN),
            i(m), i(n), i(k), i(PRODUCTS), i(1), i(k), i(m), i(n), i(0), i(0), *unread, *unread, i(n), long(m * n),
        ),
    )  # fmt: skip
    combine = KernelLaunch(
        "combine", kernel_of(session, combine_source(form)), (ceil(m, PLACES[0]) * ceil(n, PLACES[1]),), (128,),
        (
            Address(A), Address(B), Address(C), ALPHA, BETA, products, count.buffer, *map(i, (call.M, call.N, call.K, m, n)),
            long(call.lda), i(across_a), long(call.ldb), i(across_b), i(call.ldc),
        ),
    )  # fmt: skip
    a, b = summing("a", across_a, A, terms_a, call.M, call.lda), summing("b", across_b, B, terms_b, call.N, call.ldb)
    nbytes = bytes_a + bytes_b + whole(4 * PRODUCTS * m * n)
    return Launches(session, Plan([a, b, multiply, combine], workspace_bytes=nbytes, kept=(count,)), count.read)
