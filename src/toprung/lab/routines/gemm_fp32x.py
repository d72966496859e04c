"""Rungs of C = α·op(A)·op(B) + β·C as accurate as fp32 on Tensor Cores: they run the library's own fp32x product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toprung.errors import Unsupported
from toprung.kernels.base import Launches
from toprung.kernels.build import Compiled
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.cost import most_slices
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.hopper_fp32x.sizes import trimmed, unsupported
from toprung.lab.routines.gemm import of_library
from toprung.lab.rung import Rung

BRINGS = "A and the transpose of B, each element as two fp16 terms"


@of_library
def steps(compiled: Compiled[Rung], desc: Any, session: Any) -> Launches:
    """Return the launches: split both operands, multiply, and add up the K slices if there are several."""
    if reason := unsupported(session.device, desc, Fp32xConfig()):
        raise Unsupported(reason)
    config = Fp32xConfig().of({**compiled.tile.given(), **compiled.record.defines, **compiled.options})
    room = session.device.compute_units // max(block_count(desc, config), 1)  # K parts for which all tiles run at once, one per SM
    parts = compiled.options.get("SLICES", 1) or trimmed(desc.K, min(most_slices(desc), room))
    made = Fp32xLaunches(session, desc, replace(config, k_parts=parts))
    if not compiled.options.get("OVERLAP", 0):
        made.plan = made.plan._replace(launches=[launch._replace(overlaps=False) for launch in made.plan.launches])
    return made
