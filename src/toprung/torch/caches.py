"""Keys of ``torch.compile``'s caches: what was compiled or measured while toprung was enabled serves no program without it.

Inductor measures ``mm`` among its candidates, and keeps on disk what it measured and which code it took.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from toprung.torch.settings import Settings

CODECACHE = "torch._inductor.codecache"

_tag = ""
_given: str | None = None
"""The program's own tag, while ours stands behind it."""


def tag(settings: Settings | None) -> None:
    """Have everything that is compiled from now on cached under these settings; None: as PyTorch does."""
    global _tag, _given
    config = _config()
    if config is None:
        return
    wanted = "" if settings is None else f"toprung {_version()} {settings}"
    if wanted == _tag:
        return
    if _given is None:
        _given = config.cache_key_tag
    config.cache_key_tag = f"{_given} {wanted}".strip()
    if not wanted:
        config.cache_key_tag, _given = _given, None
    _tag = wanted
    _watch()


def _config() -> Any:
    try:
        import torch.compiler.config as config
    except ImportError:  # no build of PyTorch that compiles
        return None
    return config


def _version() -> str:
    from toprung.store.entry import version

    return version()


def _watch() -> None:
    """Have what was measured kept apart, too, now or when Inductor is imported."""
    module = sys.modules.get(CODECACHE)
    if module is not None:
        _keep_apart(module)
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _keep_apart(module: types.ModuleType) -> None:
    """Give measurements of Inductor's candidates the tag of the settings under which they were made."""
    cache = getattr(module, "PersistentCache", None)
    lookup = getattr(cache, "lookup", None)
    if lookup is None or hasattr(lookup, "of_toprung"):
        return

    @functools.wraps(lookup)
    def apart(self: Any, choices: Any, op: str, *more: Any, **named: Any) -> Any:
        return lookup(self, choices, f"{op} {_tag}".strip(), *more, **named)

    apart.of_toprung = True  # type: ignore[attr-defined]
    cache.lookup = apart  # type: ignore[union-attr]


class _Watcher(importlib.abc.MetaPathFinder):
    """Waits for Inductor's caches to be imported, which takes seconds, and which most programs never do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != CODECACHE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: types.ModuleType) -> None:
                execute(module)
                _keep_apart(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
