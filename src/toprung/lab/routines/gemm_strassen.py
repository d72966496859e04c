"""Rungs of C = α·op(A)·op(B) + β·C with seven products of half the size: they run the library's own level of Strassen."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from toprung.backends.base import Buffer
from toprung.errors import Unsupported
from toprung.gemm.desc import described
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_fp32x.sizes import supported
from toprung.kernels.hopper_strassen.form import STRASSEN, WINOGRAD
from toprung.kernels.hopper_strassen.launches import StrassenLaunches
from toprung.lab.routines.base import Step
from toprung.lab.routines.gemm import one_product
from toprung.lab.routines.gemm_fp32x import variant_of
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm

BRINGS = "seven sums of quarters of A and of the transpose of B, each element as two fp16 terms"


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
    if reason := supported(session.device, desc):
        raise Unsupported(reason)
    form = WINOGRAD if compiled.options.get("WINOGRAD") else STRASSEN
    plan = StrassenLaunches(session, desc, variant_of(compiled), form)
    a, b, c = (buffers[name].pointer for name in "ABC")  # type: ignore[attr-defined]
    found = []
    for step in plan.steps():
        multiply = functools.partial(lambda kept, step: step.multiply_only(None), plan, step)
        found += [
            Step("sums", functools.partial(step.split_only, a, b, None)),
            Step(compiled.record.name, multiply, helper=False),
            Step("combine", functools.partial(step.combine_only, a, b, c, problem.alpha, problem.beta, None), helper=False),
        ]
    return found
