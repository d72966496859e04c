"""Rungs of C = α·op(A)·op(B) + β·C as accurate as fp32 in one launch: they run the library's own product, split in flight."""

from __future__ import annotations

from typing import Any

from toprung.errors import Unsupported
from toprung.kernels.base import Launches
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_fp32x.config import in_flight
from toprung.kernels.hopper_fp32x.family import INFLIGHT
from toprung.lab.routines.gemm import of_library
from toprung.lab.rung import Rung

BRINGS = ""


@of_library
def steps(compiled: Compiled[Rung], desc: Any, session: Any) -> Launches:
    """Return the launch of the rung's kernel, which splits both operands in flight."""
    if reason := INFLIGHT.supports(session.device, desc):
        raise Unsupported(reason)
    return INFLIGHT.compile(session, desc, in_flight().of({**compiled.tile.given(), **compiled.record.defines}))
