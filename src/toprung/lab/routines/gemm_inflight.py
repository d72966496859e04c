"""Rungs of C = α·op(A)·op(B) + β·C as accurate as fp32 in one launch: they run the library's own product, split in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprung.backends.base import Buffer
from toprung.errors import Unsupported
from toprung.gemm.desc import described
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_fp32x.config import in_flight
from toprung.kernels.hopper_fp32x.family import INFLIGHT
from toprung.lab.routines.base import Step, each_launch
from toprung.lab.routines.gemm import one_product
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm

BRINGS = ""


def steps(compiled: Compiled[Rung], problem: Gemm, buffers: Mapping[str, Buffer], session: Any) -> list[Step]:
    """Return the one launch.

    Raises
    ------
    Unsupported
        the problem is a batch, or the family does not support it
    """
    if (few := one_product(compiled.record, problem, buffers, session)) is not None:
        return few
    desc = described(problem.describe())
    if (reason := INFLIGHT.supports(session.device, desc)) or desc.is_vector:
        raise Unsupported(reason)
    config = in_flight().of({**compiled.tile.given(), **compiled.record.defines})
    return each_launch(INFLIGHT.compile(session, desc, config), compiled.record.name, problem, buffers)
