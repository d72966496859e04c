"""Rungs of C = α·op(A)·op(B) + β·C in plain fp32 on Hopper: the library's own launches with a rung's kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprung.backends.base import Buffer
from toprung.gemm.desc import described
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_sgemm.config import SgemmConfig
from toprung.kernels.hopper_sgemm.launches import SgemmLaunches
from toprung.lab.routines.base import Step, each_launch
from toprung.lab.routines.gemm import one_product
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm

BRINGS = "A as K×M and B as K×N on 16 bytes, where they do not lie so"


def steps(compiled: Compiled[Rung], problem: Gemm, buffers: Mapping[str, Buffer], session: Any) -> list[Step]:
    """Return the launches: pad and transpose operands whose layout the kernel cannot read, then multiply.

    Raises
    ------
    Unsupported
        the problem is a batch, or the family does not support it
    """
    if (few := one_product(compiled.record, problem, buffers, session)) is not None:
        return few
    desc: Any = described(problem.describe())
    config = SgemmConfig().of({**compiled.tile.given(), **compiled.record.defines})
    plan = SgemmLaunches(session, desc, config, kernel=compiled.kernel, cut=bool(compiled.record.defines["CUT"]))
    return each_launch(plan, compiled.record.name, problem, buffers)
