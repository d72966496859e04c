"""Programs bound to a session: executables are selected, and launches are set up once for each thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from toprung.backends.base import Session
from toprung.dispatch.select import PRECISIONS
from toprung.errors import BadArgument
from toprung.execute import engine
from toprung.gemm.lowering import Copy, Layout, Place, Product, Program, lower
from toprung.kernels.build import loaded
from toprung.kernels.helpers import MOVE

GROUPS = 1 << 20
"""Largest number of work-groups of a copy: its work-items loop over more elements."""

KEPT = 4096
"""Number of prepared programs that a session keeps; past that it forgets them all and starts again."""

Step = Callable[[Sequence[Any], Sequence[int], float, float, Any], None]
"""Function that launches one step: handles and first elements of all slots, α, β, the queue."""


def known(precision: str) -> str:
    """Return a precision that exists, or raise BadArgument."""
    if precision not in PRECISIONS:
        raise BadArgument(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    return precision


class CompiledProgram:
    """A program that can be put into any queue of its session's context from any thread.

    Attributes
    ----------
    executables : the engine's executable for each of the program's calls
    simple : True if the program is one call on the operands as they are, without copies
    """

    def __init__(self, session: Session, program: Program, own: bool, precision: str, queue: Any = None) -> None:
        self.session, self.program = session, program
        self.executables = {
            call: engine.prepare(session, call, own=own, precision=precision, queue=queue) for call in program.calls
        }  # fmt: skip
        first = program.steps[0] if program.steps else None
        self.simple = (
            len(program.steps) == 1
            and isinstance(first, Product)
            and (first.a, first.b, first.c) == tuple(Place(i, 0) for i in range(3))
        )
        self._mine = threading.local()
        self._mine.steps = self._make()  # errors show now, not in the first run

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the selected kernels with their tiles."""
        return tuple(dict.fromkeys(str(e) for e in self.executables.values()))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory: the executables' and the temporaries."""
        return max((e.workspace_bytes for e in self.executables.values()), default=0) + 4 * sum(self.program.temporaries)

    def launcher(self) -> Callable[..., None]:
        """Return the launcher of a simple program's one call, on handles; for one thread."""
        return next(iter(self.executables.values())).launcher()

    def takes(self, packed: Any) -> bool:
        """Return True if B's handle may be a prepacked B."""
        return packed is not None and self.simple and next(iter(self.executables.values())).accepts(packed)

    def _make(self) -> list[Step]:
        launchers = {call: e.launcher() for call, e in self.executables.items()}
        return [
            _product(launchers[s.call], s) if isinstance(s, Product) else _copy(self.session, s) for s in self.program.steps
        ]  # fmt: skip

    def run(
        self,
        handles: Sequence[Any],
        first: Sequence[int],
        alpha: float,
        beta: float,
        queue: Any,
        scratch: Callable[[int], tuple[Any, int]],
    ) -> None:
        """Put all steps into a queue; never waits.

        Parameters
        ----------
        handles, first : handles in the runtime of the memory of A, B and C, and index of the first element in each
        scratch : number of elements → handle and first element of new memory that stays until the queue has passed
        """
        try:
            steps = self._mine.steps
        except AttributeError:
            steps = self._mine.steps = self._make()
        if self.program.temporaries:
            more = [scratch(n) for n in self.program.temporaries]
            handles, first = (*handles, *(m[0] for m in more)), (*first, *(m[1] for m in more))
        for step in steps:
            step(handles, first, alpha, beta, queue)


def _product(launch: Callable[..., None], step: Product) -> Step:
    (a, at_a), (b, at_b), (c, at_c) = step.a, step.b, step.c

    def run(handles: Sequence[Any], first: Sequence[int], alpha: float, beta: float, queue: Any) -> None:
        launch(handles[a], first[a] + at_a, handles[b], first[b] + at_b, handles[c], first[c] + at_c, alpha, beta, queue)

    return run


def _copy(session: Session, step: Copy) -> Step:
    tile = MOVE.tile_for(session.device)
    planes, rows, cols = step.shape
    elements = planes * rows * cols
    fixed = [np.uint64(rows), np.uint64(cols), np.uint64(elements), *(np.int64(s) for s in (*step.src_strides, *step.dst_strides))]
    groups = (min(-(-elements // tile.work_items), GROUPS),)
    launch = session.relaunch(loaded(session, MOVE, tile), groups, (tile.work_items,), "PlPlf", fixed)
    (src, at_src), (dst, at_dst), scaled = step.src, step.dst, step.beta

    def run(handles: Sequence[Any], first: Sequence[int], alpha: float, beta: float, queue: Any) -> None:
        launch(queue, handles[src], first[src] + at_src, handles[dst], first[dst] + at_dst, beta if scaled else 1.0)

    return run


_Key = tuple[Layout, Layout, Layout, float, bool, bool, str]
_kept: WeakKeyDictionary[Session, dict[_Key, CompiledProgram]] = WeakKeyDictionary()
_keeping = threading.Lock()


def prepared(
    session: Session, a: Layout, b: Layout, c: Layout, alpha: float, beta: float, own: bool, precision: str, queue: Any = None
) -> CompiledProgram:  # fmt: skip
    """Return the program of C = α·A·B + β·C on a session, made at the first request and kept; ``queue``: where it runs first."""
    key = (a, b, c, beta if beta in (0, 1) else 2.0, alpha != 0, own, precision)
    kept = _kept.get(session)
    if kept is None:
        with _keeping:
            kept = _kept.setdefault(session, {})
    found = kept.get(key)
    if found is None:
        found = CompiledProgram(session, lower(a, b, c, key[3], key[4]), own, precision, queue)
        with _keeping:
            if len(kept) >= KEPT:
                kept.clear()
            found = kept.setdefault(key, found)
    return found


@functools.lru_cache(maxsize=1024)
def duplicate(session: Session, program: Program) -> CompiledProgram:
    """Return a program of copies alone."""
    return CompiledProgram(session, program, True, "fp32")


def forget() -> None:
    """Forget all prepared programs: a forked child may not use them."""
    _kept.clear()
    duplicate.cache_clear()
