"""Rungs of C = α·op(A)·op(B) + β·C in plain fp32 on Hopper: the library's own launches with a rung's kernel."""

from __future__ import annotations

from typing import Any

from toprung.kernels.base import Launches
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_sgemm.config import SgemmConfig
from toprung.kernels.hopper_sgemm.launches import SgemmLaunches
from toprung.lab.routines.gemm import of_library
from toprung.lab.rung import Rung

BRINGS = "A as K×M and B as K×N on 16 bytes, where they do not lie so"


@of_library
def steps(compiled: Compiled[Rung], desc: Any, session: Any) -> Launches:
    """Return the launches: pad and transpose operands whose layout the kernel cannot read, then multiply."""
    config = SgemmConfig().of({**compiled.tile.given(), **compiled.record.defines})
    return SgemmLaunches(session, desc, config, kernel=compiled.kernel, cut=bool(compiled.record.defines["CUT"]))
