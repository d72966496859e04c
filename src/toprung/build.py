"""Compilation of rungs through a cache of binaries: (Rung, Tile, switches, Device) → Compiled.

A binary is stored under the hash of everything that can change it: kernel source, macros, and the backend's fingerprint
(compiler, driver, device, prelude). Files are published whole or not at all, so that processes may race for one name.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from toprung.backends.base import DYNAMIC_SHARED, Kernel, Resources, Session, Source
from toprung.errors import BadCubin, BadRung, BuildError
from toprung.paths import cache_dir, publish
from toprung.rung import Options, Rung
from toprung.tile import Tile

FORMAT = "toprung binary 3"
KERNELS = Path(__file__).parent / "routines" / "kernels"
LANGUAGES = {".cl": "opencl", ".cu": "cuda", ".cubin": "cubin"}
INCLUDE = re.compile(r'^#include "((?:\.\./)*(?:\w+/)*[\w.]+)".*$', re.MULTILINE)


@dataclass(frozen=True)
class Own:
    """Machine code in place of a rung's source.

    Attributes
    ----------
    name : origin of the code, for messages
    kernel : function to launch; by default the rung's, or the one that is named like the routine
    """

    code: bytes
    name: str
    kernel: str = ""

    @classmethod
    def read(cls, path: Path, kernel: str = "") -> Own:
        """Return the machine code of a file, or raise BadCubin if it cannot be read."""
        try:
            return cls(path.read_bytes(), str(path), kernel)
        except OSError as error:
            raise BadCubin(f"{path} cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class Compiled:
    """A rung ready to be bound to a problem.

    Attributes
    ----------
    options : every switch of the rung with its value
    seconds : seconds that the build took
    cached : True if the binary came from the cache
    """

    rung: Rung
    tile: Tile
    options: Options
    kernel: Kernel
    seconds: float
    cached: bool

    @property
    def resources(self) -> Resources:
        """Registers and memory that the kernel takes from a compute unit."""
        return self.kernel.resources


def build(rung: Rung, tile: Tile, options: Options, session: Session, own: Own | None = None) -> Compiled:
    """Compile a rung's kernel, or load its binary from the cache; ``own`` is machine code to be used in its place.

    Raises
    ------
    IllegalTile
        the tile breaks rules, each of which is named; nothing is compiled
    BuildError
        the kernel does not compile; the message holds the compiler's log
    BadCubin, UnknownName
        the machine code is damaged or of another architecture, or has no such kernel
    """
    options = rung.options(session.device, options)
    rung.check(tile, options, session.device)
    source = rung_source(rung, tile, options, own)
    start = time.perf_counter()
    kernel, cached = _kernel(source, session)
    return Compiled(rung, tile, options, kernel, time.perf_counter() - start, cached)


def rung_source(rung: Rung, tile: Tile, options: Options, own: Own | None = None) -> Source:
    """Return the source to compile for a rung, with its includes, and tile and switches as macros; or its machine code."""
    dynamic = {DYNAMIC_SHARED: rung.local_bytes(tile)} if rung.dynamic else {}
    defines = {**tile.defines(), **options, **rung.defines, **dynamic}
    if own is None and rung.source.suffix == ".cubin":
        own = Own.read(rung.source)
    if own is not None:
        return Source(
            f"{rung.name} from {own.name}", "", own.kernel or rung.kernel or rung.routine, defines, "cubin", binary=own.code
        )
    text = with_includes(rung.source.read_text(), rung.source.parent)
    return Source(rung.name, text, rung.kernel or rung.routine, defines, LANGUAGES[rung.source.suffix])


def with_includes(text: str, folder: Path) -> str:
    """Return a kernel source with each ``#include "name"`` replaced by that file: a binary's key covers the whole source.

    Names are relative to the including file's folder: a rung includes ``../../kernels/tiled/tiled.cl`` to share it with a family.

    Raises
    ------
    BadRung
        an included file does not exist
    """

    def included(match: re.Match[str]) -> str:
        name, before = match[1], text.count("\n", 0, match.start())
        try:
            file = folder / name
            inner = file.read_text()
        except OSError:
            raise BadRung(f"{folder} has no {name}, which a kernel there includes: add it") from None
        return f'#line 1 "{file.name}"\n{with_includes(inner, file.parent)}\n#line {before + 2}'

    return INCLUDE.sub(included, text)


def shared_source(name: str, tile: Tile) -> Source:
    """Return the source to compile for one of the kernels that rungs and routines share, by its file's stem."""
    return Source(f"kernels/{name}", (KERNELS / f"{name}.cl").read_text(), name, tile.defines())


def source_kernel(source: Source, session: Session) -> Kernel:
    """Return the kernel of any source, through the cache."""
    return _kernel(source, session)[0]


def shared_kernel(name: str, tile: Tile, session: Session) -> Kernel:
    """Return one of the kernels that rungs and routines share, by its file's stem in ``toprung/routines/kernels``."""
    return _kernel(shared_source(name, tile), session)[0]


def _kernel(source: Source, session: Session) -> tuple[Kernel, bool]:
    if source.language == "cubin":  # nothing to compile, and nothing to keep
        return session.load(session.compile(source), source), False
    path = _place(source, session.fingerprint())
    try:
        stored = path.read_bytes()
    except OSError:
        stored = b""
    digest, binary = stored[:32], stored[32:]
    if binary and hashlib.sha256(binary).digest() == digest:  # a runtime may crash on a damaged binary: it never gets one
        try:
            return session.load(binary, source), True
        except BuildError:
            pass  # made by another runtime with the same fingerprint
    binary = session.compile(source)
    kernel = session.load(binary, source)
    keep(source, session.fingerprint(), binary)
    return kernel, False


def keep(source: Source, fingerprint: str, binary: bytes) -> None:
    """Put a binary into the cache under a session's fingerprint: a process may compile for another one's session."""
    publish(_place(source, fingerprint), hashlib.sha256(binary).digest() + binary)


def _place(source: Source, fingerprint: str) -> Path:
    key = "\0".join((FORMAT, fingerprint, source.language, source.kernel, source.defines_text(), source.text))
    return cache_dir() / "binaries" / hashlib.sha256(key.encode()).hexdigest()
