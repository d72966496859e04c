"""Stream-K rungs of C = α·A·B + β·C: blocks of the last wave are cut along K, and each work-group computes one piece.

``toprung.kernels.stream_k.work`` makes the list of pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toprung.backends.base import Buffer, Session
from toprung.kernels.build import Compiled
from toprung.kernels.stream_k.work import uploaded, work
from toprung.lab.routines import gemm
from toprung.lab.routines.base import Step, shared_kernel
from toprung.lab.routines.gemm import KernelCall, round_up
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm

RESIDENT = {"gpu": 2, "cpu": 1}
"""Number of work-groups that a compute unit runs at one time, by kind of device; a GPU's as the kernel's ``room_for`` says."""
LEAST = {"gpu": 8, "cpu": 2}
"""Least iterations of the K loop that a cut must save and each share must have, by kind of device.

About as many as adding the parts and one more launch take.
"""


def steps(compiled: Compiled[Rung], problem: Gemm, buffers: Mapping[str, Buffer], session: Session) -> list[Step]:
    """Return the launches: operands laid out as for any rung, the product, and the addition of the parts."""
    return gemm.steps(compiled, problem, buffers, session, in_pieces)


def in_pieces(call: KernelCall, session: Session) -> list[Step]:
    """Return a launch with one work-group for each piece and, if a block is cut, a second one that adds the parts."""
    compiled, tile, device = call.compiled, call.compiled.tile, session.device
    kind = "gpu" if device.kind == "gpu" else "cpu"
    todo = work(call.M, call.N, call.K, tile, RESIDENT[kind] * device.compute_units, LEAST[kind])
    parts = session.allocate(4 * tile.BM * tile.BN * todo.parts)
    args = (*call.args, uploaded(todo.groups, session), parts)
    product = session.bind(compiled.kernel, (len(todo.groups), 1), (tile.DN, tile.DM), args, compiled.options)
    found = [Step(compiled.record.name, product, helper=False)]
    if todo.parts:
        each = tile.work_items * (tile.VB or 1)
        add = session.bind(
            shared_kernel("add_parts", tile, session),
            (round_up(tile.BM * tile.BN, each) // each, len(todo.added)),
            (tile.work_items, 1),
            (uploaded(todo.added, session), parts, call.c.buffer, np.int32(call.c.ld)),
        )
        found.append(Step("add_parts", add, helper=False))
    return found
