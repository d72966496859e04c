"""Advice of NVIDIA's OpenCL white paper of 2009, each piece with its experiment; found by looking in this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace

from toprung.errors import UnknownName
from toprung.lab.guidelines.base import Guideline


@functools.cache
def guidelines() -> tuple[Guideline, ...]:
    """Every guideline of this folder, by file name."""
    found = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        one = getattr(importlib.import_module(f"{__name__}.{module}"), "GUIDELINE", None)
        if one is not None:
            found.append(replace(one, name=module))
    return tuple(found)


def select(names: Sequence[str] | None) -> tuple[Guideline, ...]:
    """Return guidelines by name, all of them without names. Raises UnknownName."""
    known = {g.name: g for g in guidelines()}
    for name in names or ():
        if name not in known:
            raise UnknownName("guideline", name, known)
    return tuple(known[n] for n in names) if names else guidelines()
