"""Launches of a level of Strassen: for each piece two splitting passes, seven products in one launch, and what makes C."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.backends.plan import ALPHA, BETA, WORKSPACE, A, Address, B, C, KernelLaunch, Map, Plan
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import Launches
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter, ceil
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.sizes import ROW_BYTES, width
from toprung.kernels.hopper_fp32x.sources import SPLIT_THREADS, spread
from toprung.kernels.hopper_strassen.form import PRODUCTS, STRASSEN, Form
from toprung.kernels.hopper_strassen.sizes import LONGEST, Piece, half, parts_bytes, pieces, workspace_bytes
from toprung.kernels.hopper_strassen.sources import ALONG, combine_source, product_source, sums_source

PLACES = 16, 32
"""Rows and columns of a quarter of C that a work-group of the last launch makes."""


def cluster_of(half_k: int) -> int:
    """Return the work-groups that have the same rows where K runs across memory."""
    return spread(half_k, True)[0]


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
    bytes_a, bytes_b, _ = parts_bytes(p)
    rows_a, rows_b = PRODUCTS * m, PRODUCTS * n
    # the terms of all rows, then what stands beside them, see ``terms_bytes``
    terms_a, terms_b, products = Address(WORKSPACE), Address(WORKSPACE, bytes_a), Address(WORKSPACE, bytes_a + bytes_b)
    info_a, info_b = Address(WORKSPACE, bytes_a - _beside(rows_a)), Address(WORKSPACE, bytes_a + bytes_b - _beside(rows_b))
    across_a, across_b = call.trans_a, not call.trans_b
    a = Address(A, 4 * (p.m * (1 if across_a else call.lda) + p.k * (call.lda if across_a else 1)))
    b = Address(B, 4 * (p.n * (1 if across_b else call.ldb) + p.k * (call.ldb if across_b else 1)))
    c = Address(C, 4 * (p.m * call.ldc + p.n))

    def splitting(which: str, across: bool, places: tuple[Address, ...], side: int, ld: int) -> KernelLaunch:
        cluster, lanes = cluster_of(k) if across else 1, 32
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


def _beside(rows: int) -> int:
    """Return the bytes of what stands beside the terms."""
    return ceil(ROW_BYTES * rows, 256) * 256
