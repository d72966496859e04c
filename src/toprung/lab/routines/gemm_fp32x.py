"""Rungs of C = α·op(A)·op(B) + β·C as accurate as fp32 on Tensor Cores: they run the library's own fp32x product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toprung.backends.base import Buffer
from toprung.errors import Unsupported
from toprung.gemm.desc import described
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_fp32x.config import Fp32xConfig, tiles
from toprung.kernels.hopper_fp32x.cost import most_slices
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.hopper_fp32x.sizes import trimmed, unsupported
from toprung.lab.routines.base import Step, each_launch
from toprung.lab.routines.gemm import one_product
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm

BRINGS = "A and the transpose of B, each element as two fp16 terms"


def steps(compiled: Compiled[Rung], problem: Gemm, buffers: Mapping[str, Buffer], session: Any) -> list[Step]:
    """Return the launches: split both operands, multiply, and add up the K slices where there are several.

    Raises
    ------
    Unsupported
        the problem is a batch, or the family does not support it
    """
    if (few := one_product(compiled.record, problem, buffers, session)) is not None:
        return few
    desc: Any = described(problem.describe())
    if reason := unsupported(session.device, desc, Fp32xConfig()):
        raise Unsupported(reason)
    config = Fp32xConfig().of({**compiled.tile.given(), **compiled.record.defines, **compiled.options})
    room = session.device.compute_units // max(tiles(desc, config), 1)  # no more tiles than SMs, as memory and SHORTEST allow
    parts = compiled.options.get("SLICES", 1) or trimmed(desc.K, min(most_slices(desc), room))
    config = replace(config, k_parts=parts)
    plan = Fp32xLaunches(session, desc, config, overlap=bool(compiled.options.get("OVERLAP", 0)))
    return each_launch(plan, compiled.record.name, problem, buffers)
