"""A Program on a session: executables chosen, launches laid out once for each thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from toprung.backends.base import Session
from toprung.blas import engine
from toprung.blas.kernel import kernel, loaded
from toprung.blas.layout import Copy, Layout, Place, Product, Program, lower
from toprung.blas.route import PRECISIONS
from toprung.errors import BadArgument
from toprung.hopper import Prepared as Terms

GROUPS = 1 << 20
"""Most work-groups of a copy, whose work-items walk."""

KEPT = 4096
"""Prepared programs a session keeps; past that it forgets them all and starts again."""

Step = Callable[[Sequence[Any], Sequence[int], float, float, Any], None]
"""A launch: handles and first elements of all slots, α, β, the queue."""


def known(precision: str) -> str:
    """What the user asked for, or BadArgument."""
    if precision not in PRECISIONS:
        raise BadArgument(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    return precision


class Prepared:
    """A program that can be put into any queue of its session's context from any thread.

    Attributes
    ----------
    executables : what the engine chose for each of the program's calls
    simple : whether it is one launch on the operands as they lie
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
        self._mine.steps = self._make()  # what is wrong shows now

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels with their tiles."""
        return tuple(dict.fromkeys(str(e) for e in self.executables.values()))

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory: the engine's and the temporaries."""
        return max((e.workspace_bytes for e in self.executables.values()), default=0) + 4 * sum(self.program.temporaries)

    def launcher(self) -> Callable[..., None]:
        """The one launch of a simple program, on handles; for one thread."""
        return next(iter(self.executables.values())).launcher()

    def takes(self, terms: Terms | None) -> bool:
        """Whether B's handle may be a prepared B."""
        return terms is not None and self.simple and next(iter(self.executables.values())).takes(terms)

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
        handles, first : of A, B and C: what the runtime knows the memory by, and the first element in it
        scratch : elements → handle and first element of new memory that stays until the queue has passed
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
    tile = kernel("move").tile_for(session.device)
    planes, rows, cols = step.shape
    elements = planes * rows * cols
    fixed = [np.uint64(rows), np.uint64(cols), np.uint64(elements), *(np.int64(s) for s in (*step.src_strides, *step.dst_strides))]
    groups = (min(-(-elements // tile.work_items), GROUPS),)
    launch = session.relaunch(loaded(session, "move", tile, {}), groups, (tile.work_items,), "PlPlf", fixed)
    (src, at_src), (dst, at_dst), scaled = step.src, step.dst, step.beta

    def run(handles: Sequence[Any], first: Sequence[int], alpha: float, beta: float, queue: Any) -> None:
        launch(queue, handles[src], first[src] + at_src, handles[dst], first[dst] + at_dst, beta if scaled else 1.0)

    return run


_Key = tuple[Layout, Layout, Layout, float, bool, bool, str]
_kept: WeakKeyDictionary[Session, dict[_Key, Prepared]] = WeakKeyDictionary()
_keeping = threading.Lock()


def prepared(
    session: Session, a: Layout, b: Layout, c: Layout, alpha: float, beta: float, own: bool, precision: str, queue: Any = None
) -> Prepared:  # fmt: skip
    """The steps of C = α·A·B + β·C on a session, made at the first request and kept; ``queue``: where they will run first."""
    key = (a, b, c, beta if beta in (0, 1) else 2.0, alpha != 0, own, precision)
    kept = _kept.get(session)
    if kept is None:
        with _keeping:
            kept = _kept.setdefault(session, {})
    found = kept.get(key)
    if found is None:
        found = Prepared(session, lower(a, b, c, key[3], key[4]), own, precision, queue)
        with _keeping:
            if len(kept) >= KEPT:
                kept.clear()
            found = kept.setdefault(key, found)
    return found


@functools.lru_cache(maxsize=1024)
def duplicate(session: Session, program: Program) -> Prepared:
    """A program of copies alone."""
    return Prepared(session, program, True, "fp32")


def forget() -> None:
    """Forget all that was prepared: in a forked child nothing of it may be used."""
    _kept.clear()
    duplicate.cache_clear()
