"""Rungs of C = α·op(A)·op(B) + β·C with seven products of half the size: they run the library's own level of Strassen."""

from __future__ import annotations

from typing import Any

from toprung.errors import Unsupported
from toprung.kernels.base import Launches
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.sizes import unsupported
from toprung.kernels.hopper_fp32x.strassen import STRASSEN, Form, launches
from toprung.lab.routines.gemm import of_library
from toprung.lab.rung import Rung

BRINGS = "seven sums of quarters of A and of the transpose of B, each element as two fp16 terms"

WINOGRAD = Form(
    "Winograd",
    ((1, 0, 0, 0), (0, 1, 0, 0), (1, 1, -1, -1), (0, 0, 0, 1), (0, 0, 1, 1), (-1, 0, 1, 1), (1, 0, -1, 0)),
    ((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, -1, -1, 1), (-1, 1, 0, 0), (1, -1, 0, 1), (0, -1, 0, 1)),
    ((1, 1, 0, 0, 0, 0, 0), (1, 0, 1, 0, 1, 1, 0), (1, 0, 0, -1, 0, 1, 1), (1, 0, 0, 0, 1, 1, 1)),
)
"""Fewer additions where products share sums, which a splitting pass cannot do: 14 quarters of each operand are read."""


@of_library
def steps(compiled: Compiled[Rung], desc: Any, session: Any) -> Launches:
    """Return the launches: form and split sums of quarters, multiply them, and form C."""
    if reason := unsupported(session.device, desc, Fp32xConfig()):
        raise Unsupported(reason)
    form = WINOGRAD if compiled.options.get("WINOGRAD") else STRASSEN
    return launches(session, desc, Fp32xConfig().of({**compiled.tile.given(), **compiled.record.defines, **compiled.options}), form)
