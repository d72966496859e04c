"""C = α·op(A)·op(B) + β·C as accurate as fp32 on matrix units: the library's own product, brought to bear as rungs of a ladder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from toprung.backends.base import Buffer
from toprung.build import Compiled
from toprung.hopper import Product, Variant
from toprung.routines.base import Step
from toprung.routines.gemm import Gemm, Maker, Placed, without_product


def variant_of(compiled: Compiled) -> Variant:
    """The product's parameters out of a rung's tile, macros and switches."""
    chosen = {**compiled.tile.given(), **compiled.rung.defines, **compiled.options}
    return Variant(**{f.name: chosen[f.name] for f in fields(Variant) if f.name in chosen})


def steps(compiled: Compiled, problem: Gemm, buffers: Mapping[str, Buffer], session: Any) -> list[Step]:
    """The launches: both operands split, the product, and the guard where the rung has one.

    Raises
    ------
    Unsupported
        more than one product
    """
    out = problem.output
    few = without_product(problem, Placed(buffers["C"], out.rows, out.cols, out.ld), Maker(session))
    if few is not None:
        return few
    product = Product(session, problem, buffers, variant_of(compiled))
    found = [Step("split", product.split), Step(compiled.rung.name, product.multiply, helper=False)]
    return [*found, Step("guard", product.guard, helper=False)]
