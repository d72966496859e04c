"""What a routine's module gives: ``from_size`` (a user's size → its problem) and ``steps`` (a rung on a problem → launches)."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from toprung.backends.base import Buffer, Launch, Session
from toprung.build import Compiled
from toprung.errors import UnknownName
from toprung.problem import Problem
from toprung.rung import Rung


@dataclass(frozen=True)
class Step:
    """One launch. ``helper``: it lays out operands (pads, transposes, crops) and computes nothing."""

    name: str
    launch: Launch
    helper: bool = True


class Routine(Protocol):
    """A module of this folder."""

    def from_size(self, size: tuple[int, ...]) -> Problem:
        """The problem a user means by numbers joined with ``x``."""

    def steps(self, compiled: Compiled, problem: Problem, buffers: Mapping[str, Buffer], session: Session) -> Sequence[Step]:
        """The launches that compute the problem."""


def routine(name: str) -> Routine:
    """A routine by its module's name, or UnknownName."""
    import toprung.routines as folder

    # a name with an underscore is a routine's further method
    known = [m.name for m in pkgutil.iter_modules(folder.__path__) if m.name != "base" and "_" not in m.name]
    if name not in known:
        raise UnknownName("routine", name, known)
    return cast(Routine, importlib.import_module(f"toprung.routines.{name}"))


def method(rung: Rung) -> Routine:
    """What brings a rung's kernel to bear on a problem: its routine's module, or the one beside it that the rung names."""
    if not rung.method:
        return routine(rung.routine)
    return cast(Routine, importlib.import_module(f"toprung.routines.{rung.method}"))
