"""Kernel families, found by looking: each folder here, and in the folders of ``TOPRUNG_KERNELS``, with a ``family.py``."""

from __future__ import annotations

import copyreg
import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from toprung.errors import BadFamily, UnknownName, let_through, named
from toprung.kernels.base import KernelFamily

VARIABLE = "TOPRUNG_KERNELS"
"""Environment variable: more folders that hold kernel families, separated like ``PATH``."""


ON_HOST = "host_"
"""Beginning of the names of folders with families for host arrays, and of no others: they are found without loading the rest."""


def families(memory: str = "") -> tuple[KernelFamily, ...]:
    """Return every kernel family, the package's own first, each folder's by name.

    Parameters
    ----------
    memory : ``"host"``: only those for arrays in the host's memory, which takes a fraction of the time

    Raises
    ------
    UnknownName
        two families of one name
    BadFamily
        a folder of the variable that is none, a module there that does not load or has no FAMILY, or a family for another memory
        than its folder's name says
    """
    return _found(os.environ.get(VARIABLE, ""), f"{ON_HOST if memory == 'host' else ''}*/family.py")


def family(name: str) -> KernelFamily:
    """Return a family by its name, or raise UnknownName."""
    return named("kernel family", name, {one.name: one for one in families()})


@functools.cache
def _found(more: str, pattern: str) -> tuple[KernelFamily, ...]:
    here, users = Path(__file__).parent, [Path(p) for p in more.split(os.pathsep) if p]
    if missing := [str(p) for p in users if not p.is_dir()]:
        raise BadFamily(f"{VARIABLE} names {missing[0]}, which is no folder: correct it, or unset it")
    made: dict[str, KernelFamily] = {}
    for root in (here, *users):
        files = sorted(root.glob(pattern))
        if not files and root == here:
            raise BadFamily(
                f"{here} has no files of kernels, which toprung reads beside its modules: install it as a folder with its sources, "
                "and not as a zip file or as byte code alone"
            )
        for file in files:
            for one in _load(file, root == here):
                if (one.memory == "host") != file.parent.name.startswith(ON_HOST):
                    raise BadFamily(
                        f"{file} is a family for memory of the {one.memory}: folders {ON_HOST}* are the host's, and no others"
                    )
                if one.name in made:
                    raise UnknownName("second kernel family", one.name, made)
                copyreg.pickle(type(one), lambda one: (family, (one.name,)))  # workers of the tuner get a family by its name
                made[one.name] = one
    return tuple(made.values())


def _load(file: Path, ours: bool) -> tuple[KernelFamily, ...]:
    """Import a family's module: ours as a part of the package, a user's under a name of its own. Return its forms."""
    name = f"toprung.kernels.{file.parent.name}.family"
    if ours:
        return _forms(importlib.import_module(name))
    # the same in every process: the tuner's workers unpickle configurations by their module's name
    import hashlib

    name = f"toprung_kernels_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]  # the next who looks meets the error again, not half a module
            let_through(error)
            raise BadFamily(f"{file} does not load: {type(error).__name__}: {error}") from error
    found = _forms(sys.modules[name])
    if not found or not all(isinstance(one, KernelFamily) for one in found):
        raise BadFamily(f"{file} defines no FAMILY, an object of a class derived from KernelFamily, nor FAMILIES, several")
    return found


def _forms(module: ModuleType) -> tuple[KernelFamily, ...]:
    """Return the family that a module has, or one in several forms, each with a name."""
    return tuple(getattr(module, "FAMILIES", None) or filter(None, [getattr(module, "FAMILY", None)]))
