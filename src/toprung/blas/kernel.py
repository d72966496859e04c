"""The library's kernels as records, compiled once a session."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from toprung.backends.base import Kernel, Session
from toprung.build import build
from toprung.device import Device
from toprung.errors import UnknownName
from toprung.rung import Rung
from toprung.tile import Tile, broken

FOLDER = Path(__file__).parent / "kernels"

Run = Callable[..., None]
"""``run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue)`` on handles: one thread's own way to start a call."""


@dataclass(frozen=True)
class LibraryKernel(Rung):
    """A kernel that belongs to no ladder. Its ``routine`` is the name of the function in its text."""

    @property
    def name(self) -> str:
        """``blas/gemm``, as messages and records have it."""
        return f"blas/{self.stem}"


def kernel_names() -> list[str]:
    """Every kernel of the folder."""
    return [m.name for m in pkgutil.iter_modules([str(FOLDER)])]


@functools.cache
def kernel(stem: str) -> LibraryKernel:
    """A kernel by its file's name, or UnknownName."""
    if stem not in kernel_names():
        raise UnknownName("kernel of the library", stem, kernel_names())
    record: Any = importlib.import_module(f"toprung.blas.kernels.{stem}").KERNEL
    found: LibraryKernel = replace(record, ladder="blas", stem=stem, source=FOLDER / f"{stem}.cl")
    return found


@functools.lru_cache(1 << 14)
def legal(stem: str, tile: Tile, options: tuple[tuple[str, int], ...], device: Device) -> bool:
    """Whether a tile breaks no rule of a kernel with these switches on a device."""
    return not broken(kernel(stem).all_rules(dict(options)), tile, device)


_Key = tuple[str, Tile, tuple[tuple[str, int], ...]]
_loaded: WeakKeyDictionary[Session, dict[_Key, Kernel]] = WeakKeyDictionary()
_loading = threading.RLock()


def loaded(session: Session, stem: str, tile: Tile, options: Mapping[str, int]) -> Kernel:
    """A kernel compiled for a session's device and loaded there; kept as long as the session."""
    tile = replace(tile, SPLIT_K=None)  # how many slices there are is the launch's affair
    key = stem, tile, tuple(sorted(options.items()))
    with _loading:
        kept = _loaded.setdefault(session, {})
        if key not in kept:
            kept[key] = build(kernel(stem), tile, options, session).kernel
        return kept[key]
