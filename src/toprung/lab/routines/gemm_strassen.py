"""Rungs of C = α·op(A)·op(B) + β·C with seven products of half the size: they run the library's own level of Strassen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprung.backends.base import Buffer
from toprung.errors import Unsupported
from toprung.gemm.desc import described
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.sizes import unsupported
from toprung.kernels.hopper_fp32x.strassen import STRASSEN, Form, launches
from toprung.lab.routines.base import Step, each_launch
from toprung.lab.routines.gemm import one_product
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm

BRINGS = "seven sums of quarters of A and of the transpose of B, each element as two fp16 terms"

WINOGRAD = Form(
    "Winograd",
    ((1, 0, 0, 0), (0, 1, 0, 0), (1, 1, -1, -1), (0, 0, 0, 1), (0, 0, 1, 1), (-1, 0, 1, 1), (1, 0, -1, 0)),
    ((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, -1, -1, 1), (-1, 1, 0, 0), (1, -1, 0, 1), (0, -1, 0, 1)),
    ((1, 1, 0, 0, 0, 0, 0), (1, 0, 1, 0, 1, 1, 0), (1, 0, 0, -1, 0, 1, 1), (1, 0, 0, 0, 1, 1, 1)),
)
"""Fewer additions where products share sums, which a splitting pass cannot do: 14 quarters of each operand are read."""


def steps(compiled: Compiled[Rung], problem: Gemm, buffers: Mapping[str, Buffer], session: Any) -> list[Step]:
    """Return the launches of each piece: form and split sums of quarters, multiply them, and make C, of products of any size.

    Raises
    ------
    Unsupported
        the problem is a batch, or fp32x does not support it
    """
    if (few := one_product(compiled.record, problem, buffers, session)) is not None:
        return few
    desc: Any = described(problem.describe())
    if reason := unsupported(session.device, desc, Fp32xConfig()):
        raise Unsupported(reason)
    form = WINOGRAD if compiled.options.get("WINOGRAD") else STRASSEN
    plan = launches(session, desc, Fp32xConfig().of({**compiled.tile.given(), **compiled.record.defines, **compiled.options}), form)
    return each_launch(plan, compiled.record.name, problem, buffers)
