"""Advice of NVIDIA's OpenCL white paper of 2009, each piece with its experiment; found by looking in this folder."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from toprung.backends import constants
from toprung.errors import named
from toprung.lab.guidelines.base import Guideline


@functools.cache
def guidelines() -> tuple[Guideline, ...]:
    """Every guideline of this folder, by file name."""
    return tuple(replace(one, name=module) for module, one in constants(__name__, __path__, "GUIDELINE").items())


def select(names: Sequence[str] | None) -> tuple[Guideline, ...]:
    """Return guidelines by name, all of them without names. Raises UnknownName."""
    known = {g.name: g for g in guidelines()}
    return tuple(named("guideline", name, known) for name in names) if names else guidelines()
