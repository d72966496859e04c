"""C = α·op(A)·op(B) + β·C in plain fp32 on Hopper: the library's own plan, brought to bear with a rung's kernel."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from toprung.backends.base import Buffer
from toprung.build import Compiled
from toprung.errors import Unsupported
from toprung.hopper import Product
from toprung.hopper_fp32 import Plan, Variant
from toprung.routines.base import Step
from toprung.routines.gemm import Gemm, Maker, Placed, without_product

BRINGS = "A as K×M and B as K×N on 16 bytes, where they do not lie so"


def variant_of(compiled: Compiled) -> Variant:
    """The product's parameters out of a rung's tile and macros."""
    chosen = {**compiled.tile.given(), **compiled.rung.defines}
    return Variant(**{f.name: chosen[f.name] for f in fields(Variant) if f.name in chosen})


def steps(compiled: Compiled, problem: Gemm, buffers: Mapping[str, Buffer], session: Any) -> list[Step]:
    """The launches: what does not lie well laid out, then the product.

    Raises
    ------
    Unsupported
        more than one product, or what ``toprung.hopper_fp32`` does not compute
    """
    if problem.batch != 1:
        raise Unsupported(f"{compiled.rung} computes one product at a time: no batches")
    out = problem.output
    few = without_product(problem, Placed(buffers["C"], out.rows, out.cols, out.ld), Maker(session))
    if few is not None:
        return few
    call: Any = Product.of(problem)
    plan = Plan(session, call, variant_of(compiled), kernel=compiled.kernel, cut=bool(compiled.rung.defines["CUT"]), chains=1)
    a, b, c = (buffers[name].pointer for name in "ABC")  # type: ignore[attr-defined]
    found = []
    for panel, step in zip(plan.panels, plan.steps(), strict=True):
        if panel.lay_a or panel.lay_b:
            found.append(Step("lay", functools.partial(step.lay_only, a, b, problem.alpha, None)))
        multiply = functools.partial(step.multiply_only, a, b, c, problem.alpha, problem.beta, None)
        found.append(Step(compiled.rung.name, multiply, helper=False))
    return found
