"""Compilation of kernels through a cache of binaries: (KernelRecord, Tile, switches, Device) → Compiled.

A binary is stored under the hash of everything that can change it: kernel source, macros, and the backend's fingerprint
(compiler, driver, device, prelude). Files are published whole or not at all, so that processes may race for one name.

Wheels have machine code of common CUDA kernels, of no driver's: what the cache lacks is looked up there before it is compiled.
"""

from __future__ import annotations

import functools
import json
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from toprung.backends import nvrtc
from toprung.backends.base import Kernel, Resources, Session, Source
from toprung.device import Device
from toprung.errors import BuildError, LaunchError
from toprung.forks import renewed
from toprung.gemm.desc import Desc
from toprung.kernels.base import KernelFamily, Switches
from toprung.kernels.record import KernelRecord, LibraryKernel, Options, Own, kernel_source
from toprung.paths import cache_dir, publish_cached
from toprung.tile import Tile

FORMAT = "toprung binary 4"

PACK = Path(__file__).with_name("cubins.pack")
"""Machine code in the wheel, made by ``tools/cubins.py``: a line of JSON with places, and compressed what the cache would hold."""

Made = TypeVar("Made")
Record = TypeVar("Record", bound=KernelRecord)


class Compiled(NamedTuple, Generic[Record]):
    """A kernel ready to be bound to a problem.

    Attributes
    ----------
    options : every switch of the kernel with its value
    seconds : seconds that the build took
    cached : True if the binary came from the cache
    """

    record: Record
    tile: Tile
    options: Options
    kernel: Kernel
    seconds: float
    cached: bool

    @property
    def resources(self) -> Resources:
        """Registers and memory that the kernel takes from a compute unit."""
        return self.kernel.resources


LOADED: dict[str, str] = {}
"""Texts of all kernels that this process has loaded, each with a name, for the records that it writes."""


class _Compiling(threading.local):
    seconds = 0.0
    apart: Callable[..., Any] | None = None


compiling = _Compiling()
"""CPU seconds that this thread has spent in compilers, hashes of sources and the driver, which all run without the GIL.

A thread may also have ``apart``, which calls a function in another process and returns None if that fails."""


def build(
    record: Record, tile: Tile, options: Options, session: Session, own: Own | None = None, shipped: bool = False
) -> Compiled[Record]:
    """Compile a kernel, or load its binary from the cache; ``own`` is machine code to be used in its place.

    ``shipped``: the wheel's machine code will do; not where the compiler of this environment is what is measured.

    Raises
    ------
    IllegalTile
        the tile breaks rules, each of which is named; nothing is compiled
    BuildError
        the kernel does not compile; the message holds the compiler's log
    BadCubin, UnknownName
        the machine code is damaged or of another architecture, or has no such kernel
    """
    options = record.options(session.device, options)
    record.check(tile, options, session.device)
    source = kernel_source(record, tile, options, own)
    start = time.perf_counter()
    kernel, cached = _kernel(source, session, shipped)
    return Compiled(record, tile, options, kernel, time.perf_counter() - start, cached)


def source_kernel(source: Source, session: Session) -> Kernel:
    """Return the kernel of any source, through the cache."""
    return _kernel(source, session, False)[0]


def _kernel(source: Source, session: Session, shipped: bool) -> tuple[Kernel, bool]:
    """Return a kernel of a source, and whether it was stored: from the cache, from the wheel or compiled now."""
    began = time.thread_time()
    try:
        return _loaded(source, session, shipped)
    finally:
        compiling.seconds += time.thread_time() - began


def _loaded(source: Source, session: Session, shipped: bool) -> tuple[Kernel, bool]:
    if source.language == "cubin" or not session.fingerprint():  # nothing to compile, and nothing to keep
        return session.load(session.compile(source), source), False
    LOADED[source.text] = source.name
    for stored in _stored(source, session, shipped):
        digest, binary = stored[:32], stored[32:]
        if _digest(binary) == digest:  # a runtime may crash on a damaged binary: it never gets one
            with suppress(BuildError, LaunchError):  # of another runtime with this fingerprint, or newer than the driver
                return session.load(binary, source), True
    apart = compiling.apart if session.device.backend == "cuda" else None
    made = apart(nvrtc.machine_code, source, session.device.arch, session.device.runtime) if apart else b""
    binary = made or session.compile(source)
    kernel = session.load(binary, source)
    keep(source, session.fingerprint(), binary)
    return kernel, False


def _stored(source: Source, session: Session, shipped: bool) -> Iterator[bytes]:
    """Yield what is kept of a kernel: in the cache, then in the wheel, newer compilers' code first."""
    with suppress(OSError):
        yield _place(source, session.fingerprint()).read_bytes()
    if shipped and session.device.backend == "cuda":
        with suppress(OSError, ValueError, zlib.error):  # no pack, or a damaged one
            places, start = _contents(PACK)
            for offset, size in places.get(key_of(source, nvrtc.fingerprint(session.device.arch)), ()):
                with PACK.open("rb") as file:
                    file.seek(start + offset)
                    packed = file.read(size)
                yield zlib.decompress(packed)


@functools.cache
def _contents(pack: Path) -> tuple[Mapping[str, list[tuple[int, int]]], int]:
    """Return a pack's places by key, each an offset and a size, and where the first begins."""
    with pack.open("rb") as file:
        return json.loads(file.readline()), file.tell()


class _Dry(SimpleNamespace):
    """A session without a device, which allocates and keeps nothing."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def sources_of(family: KernelFamily, device: Device, desc: Desc, config: Any) -> list[Source]:
    """Return what a family's ``compile`` compiles for a product, the product's kernel first, so that it can be compiled ahead.

    Raises
    ------
    IllegalTile, LaunchError, Unsupported
        the family has no launches of this configuration on such a device
    """
    found, memory = list[Source](), SimpleNamespace(handle=0)
    memory.part = lambda offset, nbytes: memory
    session: Any = _Dry(
        device=device, fingerprint=lambda: "", compile=found.append, load=lambda binary, source: source,
        allocate=lambda nbytes: memory, upload=lambda buffer, array: None,
    )  # fmt: skip
    family.compile(session, desc, config)
    return found


def keep(source: Source, fingerprint: str, binary: bytes) -> None:
    """Put a binary into the cache under a session's fingerprint: a process may compile for another one's session."""
    publish_cached(_place(source, fingerprint), _digest(binary) + binary)


def is_kept(source: Source, fingerprint: str) -> bool:
    """Return True if a binary is in the cache under a session's fingerprint; whoever loads it finds out whether it is whole."""
    return _place(source, fingerprint).exists()


def key_of(source: Source, fingerprint: str) -> str:
    """Return the hash under which a binary is stored."""
    words = FORMAT, fingerprint, source.language, source.kernel, source.defines_text(), source.text
    return _digest("\0".join(words).encode()).hex()


def _digest(content: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(content).digest()


def _place(source: Source, fingerprint: str) -> Path:
    return cache_dir() / "binaries" / key_of(source, fingerprint)


_lock = renewed(threading.RLock())
_kept: WeakKeyDictionary[Session, dict[Hashable, Any]] = WeakKeyDictionary()
_in_turn: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
"""Locks of the objects that are being made, by session and key."""


def loaded(session: Session, record: LibraryKernel, tile: Tile, options: Mapping[str, int] | Switches = ()) -> Kernel:
    """Return a kernel compiled for a session's device and loaded there; kept as long as the session."""
    tile, options = tile if tile.SPLIT_K is None else replace(tile, SPLIT_K=None), tuple(sorted(dict(options).items()))
    return kept(session, (record, tile, options), lambda: build(record, tile, dict(options), session, shipped=True).kernel)


def kernel_of(session: Session, source: Source) -> Kernel:
    """Return the kernel of any source, compiled for a session's device and loaded there; kept as long as the session."""
    key = source.text, source.kernel, tuple(source.defines.items()), source.flags
    return kept(session, key, lambda: _kernel(source, session, True)[0])


def kept(session: Session, key: Hashable, make: Callable[[], Made]) -> Made:
    """Return what a session keeps under a key, such as a kernel or a table; make it if it is missing.

    While it is made, all threads wait that want to make something. On CUDA, whose compiler runs in several processes, only those
    wait that want the same.
    """
    with _lock:
        there = _kept.setdefault(session, {})
        if key in there:
            return there[key]  # type: ignore[no-any-return]
        mine = _in_turn.setdefault((session, key), renewed(threading.RLock())) if session.device.backend == "cuda" else _lock
    with mine:
        if key not in there:
            there[key] = make()
        return there[key]  # type: ignore[no-any-return]
