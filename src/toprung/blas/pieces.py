"""The product by pieces: the list of what each work-group does, made once for a call, and the two launches."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.blas.call import Call, GemmCall
from toprung.blas.choice import Choice
from toprung.blas.kernel import Run, loaded
from toprung.routines.gemm_last_wave import Work, uploaded, work

PIECES = "pieces"
"""The choice's kernel."""
SAVED = 128
"""Elements along K that a place must save, and a share have, for a cut: what a second launch and adding take."""


@functools.lru_cache(256)
def listed(call: GemmCall, choice: Choice, units: int) -> Work:
    """What the work-groups do, and what is added."""
    assert choice.tile is not None
    options = dict(choice.options)
    slots, least = max(1, options["RESIDENT"]) * units, max(1, SAVED // (choice.tile.BK or 1))
    return work(call.M, call.N, call.K, choice.tile, slots, least, options["GROUP_M"])


def workspace_bytes(call: Call, choice: Choice, units: int) -> int:
    """Scratch memory: the parts."""
    assert isinstance(call, GemmCall) and choice.tile is not None
    if not (call.M and call.N and call.K):
        return 0
    return 4 * choice.tile.BM * choice.tile.BN * listed(call, choice, units).parts


def product(session: Session, call: Call, choice: Choice) -> Run:
    """Both launches, or the one where nothing is cut."""
    assert isinstance(call, GemmCall) and choice.tile is not None
    tile, options = choice.tile, dict(choice.options)
    todo = listed(call, choice, session.device.compute_units)
    nbytes = workspace_bytes(call, choice, session.device.compute_units)
    groups = uploaded(todo.groups, session)
    main = session.relaunch(
        loaded(session, PIECES, tile, options), (len(todo.groups),), (tile.work_items,), "PlPlPlffPP",
        [np.uint32(v) for v in (call.M, call.N, call.lda, call.ldb, call.ldc)],
    )  # fmt: skip
    if not todo.parts:

        def whole(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
        ) -> None:
            main(queue, a, offset_a, b, offset_b, c, offset_c, alpha, beta, groups.handle, groups.handle)

        return whole

    added = uploaded(todo.added, session)
    groups_each = -(-tile.BM * tile.BN // (tile.work_items * options["VC"]))
    add = session.relaunch(
        loaded(session, "collect", tile, {"VC": options["VC"]}), (groups_each, len(todo.added)), (tile.work_items, 1), "PlPP",
        [np.uint32(v) for v in (call.M, call.N, call.ldc)],
    )  # fmt: skip

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
    ) -> None:
        scratch = session.workspace(queue, nbytes)
        with scratch.lock:
            apart = scratch.buffer.handle
            main(queue, a, offset_a, b, offset_b, c, offset_c, alpha, beta, groups.handle, apart)
            add(queue, c, offset_c, added.handle, apart)

    return run


def launches(call: Call, choice: Choice, units: int) -> int:
    """Two where something is cut."""
    assert isinstance(call, GemmCall)
    return 2 if call.M and call.N and call.K and listed(call, choice, units).parts else 1
