"""Problems of the tests, the benchmarks and the tuner as the engine's calls, and what a store calls them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from toprung import backends, hopper, hopper_fp32
from toprung.blas.call import Call, GemmCall, GemvCall, widths
from toprung.blas.choice import FFMA
from toprung.blas.choose import problem_class
from toprung.blas.fp32x import FP32X
from toprung.blas.kernel import kernel
from toprung.blas.short import Skinny, skinny_widths
from toprung.build import with_includes
from toprung.errors import Unsupported
from toprung.peers import _cublas
from toprung.problem import Problem
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.tokens import source_digest

ALIGNED = 4
"""Floats to which a session's memory and ``GUARD`` are aligned."""


def call_of(problem: Problem, align: int = ALIGNED) -> Call:
    """A problem of the tests and benchmarks as the engine takes it: the matrices of a batch lie one below the other.

    Raises
    ------
    Unsupported
        another routine's problem
    """
    if isinstance(problem, Gemm):
        batch = problem.batch
        a, b, c = (m.rows // batch * m.ld for m in problem.matrices)
        strides = {"stride_a": a, "stride_b": b, "stride_c": c} if batch > 1 else {}
        return GemmCall(
            problem.M, problem.N, problem.K, batch, problem.trans[0] == "T", problem.trans[1] == "T", problem.lda or 0,
            problem.ldb or 0, problem.ldc or 0, **strides, align_a=align, align_b=align, align_c=align,
            beta_zero=problem.beta == 0,
        )  # fmt: skip
    if isinstance(problem, Gemv):
        return GemvCall(
            problem.M, problem.N, problem.trans == "T", problem.lda or 0, problem.incx, problem.incy, align, align,
            problem.beta == 0,
        )  # fmt: skip
    raise Unsupported(f"the library computes gemm and gemv, not {problem.routine}")


def problem_of(described: Mapping[str, Any]) -> Gemm | Gemv:
    """A problem of ours from its ``describe()``."""
    values = {k: v for k, v in described.items() if k not in ("routine", "measured_in")}
    return Gemv(**values) if described["routine"] == "gemv" else Gemm(**values)


def problem_like(call: Call) -> Gemm | Gemv | None:
    """A problem of a call's sizes and class; None where there is none: with negative increments.

    What a call has and a problem has not, an address that lies on no boundary, is made up for by rows that begin on none.
    """
    beta = 0.0 if call.beta_zero else 1.0
    made: Iterator[Gemm | Gemv]
    if isinstance(call, GemvCall):
        if min(call.incx, call.incy) < 1:
            return None
        gemv = Gemv(call.M, call.N, beta=beta, incx=call.incx, incy=call.incy, trans="T" if call.trans else "N")
        made = (replace(gemv, lda=max(call.lda, call.N, 1) + more) for more in range(ALIGNED))
    else:
        gemm = Gemm(call.M, call.N, call.K, beta=beta, trans=call.trans, batch=call.batch)
        least = (max(ld, cols, 1) for ld, (_, cols) in zip((call.lda, call.ldb, call.ldc), call.stored, strict=True))
        longer = itertools.product(*(range(ld, ld + ALIGNED) for ld in least))
        made = (replace(gemm, lda=a, ldb=b, ldc=c) for a, b, c in longer)
    wanted = class_of(call), sizes_of(call)
    return next((one for one in made if (class_of(found := call_of(one)), sizes_of(found)) == wanted), None)


def class_of(call: Call) -> str:
    """What neighbours in a store have in common: ``problem_class``, the layout, and how wide accesses to each operand may be.

    ``large NN v444``: A, B and C are read and written four floats at a time; ``vector T v4``: A is, ``strided`` where x is not
    contiguous.
    """
    if isinstance(call, GemvCall):
        wide, _ = skinny_widths(Skinny.of(call))
        return f"{problem_class(call)} {'T' if call.trans else 'N'} v{wide}{'' if call.incx == 1 else ' strided'}"
    return f"{problem_class(call)} {call.trans} v{''.join(map(str, widths(call)))}"


def sizes_of(call: Call) -> tuple[int, int, int, int]:
    """M, N, K and the batch, as ``Entry.sizes`` has them."""
    if isinstance(call, GemvCall):
        return max(1, call.M), max(1, call.N), 1, 1
    return max(1, call.M), max(1, call.N), max(1, call.K), call.batch


SECOND_PASS = {"gemm": "add", "rows": "add", "columns": "add", "pieces": "collect"}
"""Kernels whose split sums another kernel adds: its source is part of theirs."""


@functools.cache
def source_hash(name: str, backend: str) -> str:
    """Return the hash of a kernel's source as one backend compiles it; for a vendor's kernel the library's version.

    The hash covers tokens alone (``toprung.tokens``): those of every file that the kernel and its second pass consist of, and of
    the backend's prelude where the kernel is OpenCL C. Comments, white space and the names of included files do not count.

    Returns
    -------
    32 hexadecimal digits, or a name with a version; empty where a vendor's library is not installed.

    Raises
    ------
    UnknownName
        no such kernel
    """
    if name == "numpy":
        return f"numpy {np.__version__}"
    if name == "cublas":
        return _cublas.version()
    if name == FP32X:
        made = hopper.product_source(hopper.Variant()), hopper.split_source(), hopper.reduce_source()
        return source_digest(source.text for source in made)
    if name == FFMA:
        return source_digest(
            source.text for source in (hopper_fp32.product_source(hopper_fp32.Variant()), hopper_fp32.lay_source())
        )
    stems = (name, SECOND_PASS[name]) if name in SECOND_PASS else (name,)
    files = [kernel(stem).source for stem in stems]
    return source_digest([backends.prelude(backend), *(with_includes(file.read_text(), file.parent) for file in files)])
