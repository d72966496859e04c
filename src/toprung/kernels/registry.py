"""Kernel families, found by looking: each folder here, and in the folders of ``TOPRUNG_KERNELS``, with a ``family.py``."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from toprung.errors import BadArgument, UnknownName
from toprung.kernels.base import KernelFamily

VARIABLE = "TOPRUNG_KERNELS"
"""Environment variable: more folders that hold kernel families, separated like ``PATH``."""


ON_HOST = "host_"
"""How the folders of families for arrays in the host's memory begin, and of no others: they are found without loading the rest."""


def families(memory: str = "") -> tuple[KernelFamily, ...]:
    """Return every kernel family, the package's own first, each folder's by name.

    Parameters
    ----------
    memory : ``"host"``: only those for arrays in the host's memory, which takes a fraction of the time

    Raises
    ------
    UnknownName
        two families of one name
    BadArgument
        a family in a folder whose name says another memory
    """
    return _found(os.environ.get(VARIABLE, ""), f"{ON_HOST if memory == 'host' else ''}*/family.py")


def family(name: str) -> KernelFamily:
    """Return a family by its name, or raise UnknownName."""
    for one in families():
        if one.name == name:
            return one
    raise UnknownName("kernel family", name, [one.name for one in families()])


@functools.cache
def _found(more: str, pattern: str) -> tuple[KernelFamily, ...]:
    here = Path(__file__).parent
    made: dict[str, KernelFamily] = {}
    for root in (here, *(Path(p) for p in more.split(os.pathsep) if p)):
        for file in sorted(root.glob(pattern)):
            one: KernelFamily = _load(file, root == here).FAMILY
            if (one.memory == "host") != file.parent.name.startswith(ON_HOST):
                raise BadArgument(
                    f"{file} is a family for memory of the {one.memory}: folders {ON_HOST}* are the host's, and no others"
                )
            if one.name in made:
                raise UnknownName("second kernel family", one.name, made)
            copyreg.pickle(type(one), _by_name)  # workers of the tuner get a family by its name
            made[one.name] = one
    return tuple(made.values())


def _by_name(one: KernelFamily) -> tuple[Any, tuple[str]]:
    return family, (one.name,)


def _load(file: Path, ours: bool) -> Any:
    """Import a family's module: ours as a part of the package, a user's under a name of its own."""
    name = f"toprung.kernels.{file.parent.name}.family"
    if ours:
        return importlib.import_module(name)
    # the same in every process: the tuner's workers unpickle configurations by their module's name
    name = f"toprung_kernels_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # the next who looks meets the error again, not half a module
        raise
    return module
