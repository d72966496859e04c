"""Modules and functions under their old names: an import of one warns, and gives what is there now.

The names as they were before the laboratory got a room of its own (``docs/names.md``). They stay for two minor versions
(``CONTRIBUTING.md``); rungs, peers and scripts that import them go on working until then.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

MOVED: Mapping[str, str] = MappingProxyType(
    {
        "accuracy": "lab.harness.accuracy",
        "bandwidth": "lab.harness.bandwidth",
        "bench": "lab.harness.bench",
        "blas.arrays": "arrays",
        "bounds": "lab.bounds",
        "build": "kernels.build",
        "check": "oracle.check",
        "climb": "lab.harness.climb",
        "competitor": "lab.competitor",
        "data": "oracle.data",
        "environment": "lab.harness.environment",
        "explain": "lab.explain",
        "guidelines": "lab.guidelines",
        "ladders": "lab.ladders",
        "machine_code": "lab.sass.machine_code",
        "measure": "lab.harness.measure",
        "peers": "lab.baselines",
        "power": "lab.harness.power",
        "precision": "oracle.precision",
        "probe": "lab.probe",
        "problem": "oracle.problem",
        "results": "lab.harness.results",
        "routines": "lab.routines",
        "rung": "lab.rung",
        "single": "lab.harness.single",
        "stats": "lab.harness.stats",
        "suites": "lab.harness.suites",
    }
)
"""Old name → new, both below ``toprung``; modules below them moved along."""


RENAMED: Mapping[str, str] = MappingProxyType({"Prepared": "PackedOperand", "prepare": "prepack"})
"""Old name → new, both in ``toprung``."""


def renamed(name: str) -> Any:
    """Return what an old name in ``toprung`` stands for, with a warning; AttributeError for a name that never was."""
    if name not in RENAMED:
        raise AttributeError(f"module 'toprung' has no attribute {name!r}")
    new = RENAMED[name]
    warnings.warn(f"toprung.{name} is toprung.{new} now; the old name goes with version 0.3", FutureWarning, stacklevel=3)
    return getattr(sys.modules["toprung"], new)


def new_name(old: str) -> str | None:
    """Return the new name of a module below ``toprung``; None if it did not move."""
    parts = old.split(".")
    for end in range(len(parts), 0, -1):
        if (found := MOVED.get(".".join(parts[:end]))) is not None:
            return ".".join([found, *parts[end:]])
    return None


class Finder:
    """A finder and loader of modules under their old names, for ``sys.meta_path``."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec for an old name, None for every other."""
        package, _, old = name.partition(".")
        return ModuleSpec(name, Finder()) if package == "toprung" and new_name(old) is not None else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Have an empty module made, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and put the module of the new name in its place: what ``sys.modules`` has afterwards is what an import returns."""
        old = module.__name__
        new = f"toprung.{new_name(old.partition('.')[2])}"
        warnings.warn(f"{old} is {new} now: import that; the old name goes with version 0.3", FutureWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def install() -> None:
    """Let old names be imported from now on."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)  # last: a module that is there is never looked for here
