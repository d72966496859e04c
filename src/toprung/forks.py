"""Forked children: every lock is free there, and what the parent kept for itself is forgotten, at one place.

A child has one thread: what its parent's other threads held at the fork would never be released there.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

generation = 0
"""Number of forks between the process that loaded this module and this one."""

_locks: WeakSet[Any] = WeakSet()
_forgetting: list[Callable[[], object]] = []
_of_parent: list[object] = []
"""Objects that children dropped, kept alive: freeing one may wait for a lock of its runtime, which no child renews."""


def renewed(lock: T) -> T:
    """Return a new lock of ``threading``, which will be free in a forked child. All locks are made so."""
    _locks.add(lock)
    return lock


def in_child(forget: Callable[[], object]) -> Callable[[], object]:
    """Have a function called in each forked child, where all locks are free by then; what it returns is never freed."""
    _forgetting.append(forget)
    return forget


class cached_property(functools.cached_property[T]):
    """``functools.cached_property``, whose lock, which it has up to Python 3.11, is free in a forked child."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        super().__init__(function)
        if hasattr(self, "lock"):
            renewed(self.lock)


def _end_imports() -> None:
    """Drop modules of toprung that other threads were importing at the fork: in a child those imports would never end."""
    locks: dict[str, Any] = getattr(importlib, "_bootstrap")._module_locks  # noqa: B009  # no name that types know
    begun = {name: lock.owner for name, ref in locks.items() if (lock := ref()) is not None}
    ours = {owner for name, owner in begun.items() if name.partition(".")[0] == "toprung"} - {None, threading.get_ident()}
    for name in [name for name, owner in begun.items() if owner in ours]:
        del locks[name]
        sys.modules.pop(name, None)


def _renew() -> None:
    global generation
    generation += 1
    for lock in list(_locks):
        if not getattr(lock, "_is_owned", bool)():  # the thread that forked goes on with what it holds
            lock._at_fork_reinit()
    _end_imports()
    _of_parent.extend([forget() for forget in _forgetting])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
