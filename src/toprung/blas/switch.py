"""Which settings hold for the whole process: what was enabled, and the blocks that are open, of which the innermost counts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from toprung.dispatch import ON_REQUEST, PRECISIONS
from toprung.errors import BadArgument
from toprung.forks import renewed

S = TypeVar("S")


def check_precision(precision: str, module: str, tf32: str) -> None:
    """Raise BadArgument for a precision in which another library's products are not taken; ``tf32``: whose that is, and how."""
    if callable(precision):
        raise BadArgument(
            f"precision is a name, not a function: to decorate one, write @toprung.{module}.use(), with its parentheses"
        )
    if precision == "tf32":
        raise BadArgument(f"precision 'tf32' is {tf32}")
    if precision in ON_REQUEST:
        raise BadArgument(f"precision {precision!r} promises less than fp32: ask toprung.matmul for it, product by product")
    if precision not in (known := [name for name in PRECISIONS if name not in ON_REQUEST]):
        raise BadArgument(f"precision is one of {', '.join(known)}, not {precision!r}")


def least_flops(min_flops: int | None, default: int) -> int:
    """Return ``min_flops``, or the default for None; raise BadArgument if it is not a valid number."""
    if min_flops is None:
        return default
    if isinstance(min_flops, bool) or not isinstance(min_flops, int | float) or not min_flops >= 0:
        raise BadArgument(f"min_flops is a number of operations from 0 on, not {min_flops!r}")
    return int(min(min_flops, 2**62))


class Switch(Generic[S]):
    """Settings under which another library's products are taken: those of ``enable``, and those of open blocks.

    Attributes
    ----------
    lock : held while settings change; whoever does more with a change takes it, too
    """

    def __init__(self, apply: Callable[[S | None, list[S]], None]) -> None:
        """``apply`` is given the active settings, None where nothing is taken, and all that may become active again."""
        self.lock = renewed(threading.RLock())
        self._apply = apply
        self._enabled: S | None = None
        self._frames: list[tuple[object, S | None]] = []  # the innermost last, each with a mark of its block

    def enable(self, settings: S | None) -> None:
        """Have settings hold where no block is open; None takes nothing."""
        with self.lock:
            self._enabled = settings
            self._changed()

    def enter(self, settings: S | None) -> object:
        """Open a block, and return a mark by which ``leave`` closes it."""
        mark = object()
        with self.lock:
            self._frames.append((mark, settings))
            self._changed()
        return mark

    def leave(self, mark: object) -> None:
        """Close a block; blocks of several threads may be closed in any order."""
        with self.lock:
            self._frames[:] = [frame for frame in self._frames if frame[0] is not mark]
            self._changed()

    def _changed(self) -> None:
        active = self._frames[-1][1] if self._frames else self._enabled
        self._apply(active, [s for s in (self._enabled, *(s for _, s in self._frames)) if s is not None])


class Block(contextlib.ContextDecorator, Generic[S]):
    """A block, or a function, in which settings hold for the whole process."""

    def __init__(self, switch: Switch[S], settings: S | None) -> None:
        self._switch, self._settings = switch, settings
        self._entered: list[object] = []

    def __enter__(self) -> Any:
        with self._switch.lock:
            self._entered.append(self._switch.enter(self._settings))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._switch.lock:
            self._switch.leave(self._entered.pop())
