"""Interface of a routine's module: ``from_size`` (a user's size → its problem) and ``steps`` (a rung on a problem → launches)."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from toprung import backends
from toprung.backends.base import Buffer, Kernel, Launch, Session, Source
from toprung.device import Device
from toprung.errors import UnknownName, Unsupported
from toprung.kernels.base import Launches
from toprung.kernels.build import Compiled, kernel_of
from toprung.kernels.record import LANGUAGES
from toprung.lab.rung import Rung
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import Problem
from toprung.tile import Tile


@dataclass(frozen=True)
class Step:
    """One launch. ``helper``: it lays out operands (pads, transposes, crops) and computes nothing."""

    name: str
    launch: Launch
    helper: bool = True


LAYS_OUT = ("lay", "split", "sums")
"""Launches of the library's products that lay out operands."""


def each_launch(made: Launches, rung: str, problem: Gemm, buffers: Mapping[str, Buffer]) -> list[Step]:
    """Return a step for each launch of a product of the library's, the one that multiplies under a rung's name."""
    a, b, c = (buffers[name].pointer for name in "ABC")  # type: ignore[attr-defined]
    steps = []
    for launch in made.plan.due(problem.alpha, problem.beta):
        run = made.session.launcher(made.plan.only(launch))
        start = functools.partial(run, a, 0, b, 0, c, 0, problem.alpha, problem.beta)
        steps.append(Step(rung if launch.name == "multiply" else launch.name, start, helper=launch.name in LAYS_OUT))
    return steps


class Routine(Protocol):
    """A module of this folder."""

    def from_size(self, size: tuple[int, ...]) -> Problem:
        """The problem a user means by numbers joined with ``x``."""

    def steps(self, compiled: Compiled[Rung], problem: Problem, buffers: Mapping[str, Buffer], session: Session) -> Sequence[Step]:
        """The launches that compute the problem."""


def routine(name: str) -> Routine:
    """A routine by its module's name, or UnknownName."""
    import toprung.lab.routines as folder

    # a name with an underscore is a routine's further method
    known = [m.name for m in pkgutil.iter_modules(folder.__path__) if m.name != "base" and "_" not in m.name]
    if name not in known:
        raise UnknownName("routine", name, known)
    return cast(Routine, importlib.import_module(f"toprung.lab.routines.{name}"))


def method(rung: Rung) -> Routine:
    """Return the module that launches a rung's kernel on a problem: its routine's, or the one beside it that the rung names."""
    if not rung.method:
        return routine(rung.routine)
    return cast(Routine, importlib.import_module(f"toprung.lab.routines.{rung.method}"))


KERNELS = Path(__file__).parent / "kernels"
"""Folder of the kernels that rungs and routines share."""


def shared_source(name: str, tile: Tile, device: Device) -> Source:
    """Return the source to compile for one of the kernels that rungs and routines share, in a device's language.

    Raises
    ------
    Unsupported
        nobody has written the kernel in a language that the device's backend compiles
    """
    suffixes = {language: suffix for suffix, language in LANGUAGES.items()}
    for language in backends.languages(device):
        if (path := KERNELS / f"{name}{suffixes[language]}").exists():
            return Source(f"kernels/{name}", path.read_text("utf-8"), name, tile.defines(), language)
    known = ", ".join(backends.languages(device))
    raise Unsupported(f"the kernel {name} is not written in a language that {device} compiles: {known}")


def shared_kernel(name: str, tile: Tile, session: Session) -> Kernel:
    """Return one of the kernels that rungs and routines share, by its file's stem in ``toprung/lab/routines/kernels``.

    It is loaded once a session: a product copies and pads with the same few.
    """
    return kernel_of(session, shared_source(name, tile, session.device))
