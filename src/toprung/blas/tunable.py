"""What of the library a search may change: for each kernel its axes, and how a point of them becomes a choice for a call."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toprung.blas.call import Call
from toprung.blas.choice import Choice
from toprung.device import Device

FOLDER = Path(__file__).parent / "tunables"

Axes = Mapping[str, tuple[int, ...]]
"""Values of each parameter that a search may try."""

Point = Mapping[str, int]
"""One of them each."""


@dataclass(frozen=True)
class Tunable:
    """A kernel that a search may tune.

    Attributes
    ----------
    kernel : its name, as choices and the store have it
    axes : for a device and call; empty where the kernel does not compute the call
    make : the choice that a point stands for, all that follows from the call filled in; None where it is not legal
    point : the inverse, as near as it goes
    coarse : points from which a search starts and which a model may order; by default all of them
    """

    kernel: str
    axes: Callable[[Device, Call], Axes]
    make: Callable[[Device, Call, Point], Choice | None]
    point: Callable[[Choice], Point]
    coarse: Callable[[Device, Call], Iterator[Point]] | None = None


@functools.cache
def tunables() -> tuple[Tunable, ...]:
    """Every tunable kernel: each module of the folder ``tunables`` has one as ``TUNABLE``."""
    found = []
    for module in pkgutil.iter_modules([str(FOLDER)]):
        record: Tunable = importlib.import_module(f"toprung.blas.tunables.{module.name}").TUNABLE
        found.append(record)
    return tuple(found)
