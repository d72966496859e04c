"""Problems made from what is stored of one, and from a descriptor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from toprung.gemm.classes import class_of
from toprung.gemm.desc import ALIGNED, Desc
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv


def problem_of(described: Mapping[str, Any]) -> Gemm | Gemv:
    """Return the problem that a ``describe()`` describes."""
    values = {k: v for k, v in described.items() if k not in ("routine", "measured_in")}
    return Gemv(**values) if described["routine"] == "gemv" else Gemm(**values)


def problem_like(desc: Desc) -> Gemm | Gemv | None:
    """Return a problem of a product's sizes and class; None if there is none, as with negative increments.

    A product may start at an unaligned address, a problem may not: its leading dimensions are made unaligned instead.
    """
    beta = 0.0 if desc.beta_zero else 1.0
    made: Iterator[Gemm | Gemv]
    if desc.is_vector:
        if min(desc.incx, desc.incy) < 1:
            return None
        gemv = Gemv(desc.M, desc.N, beta=beta, incx=desc.incx, incy=desc.incy, trans="T" if desc.trans else "N")
        made = (replace(gemv, lda=max(desc.lda, desc.N, 1) + more) for more in range(ALIGNED))
    else:
        gemm = Gemm(desc.M, desc.N, desc.K, beta=beta, trans=desc.trans, batch=desc.batch)
        least = (max(ld, cols, 1) for ld, (_, cols) in zip((desc.lda, desc.ldb, desc.ldc), desc.stored, strict=True))
        longer = itertools.product(*(range(ld, ld + ALIGNED) for ld in least))
        made = (replace(gemm, lda=a, ldb=b, ldc=c) for a, b, c in longer)
    wanted = class_of(desc), desc.sizes
    return next((one for one in made if (class_of(one.desc), one.desc.sizes) == wanted), None)
