"""One store of what tests compile, kept from run to run: an entry's name is the hash of everything that it depends on.

An entry is one file with the SHA-256 of its content behind it, which neither ``dlopen`` nor g++ minds. It is published by a rename,
made again if it is damaged, and removed after ``DAYS`` without use.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from toprung.backends import pocl_cache

VARIABLE = "TOPRUNG_TESTS_ONCE"
"""Environment variable that moves the store."""
DAYS = 30
ROOT = Path(__file__).parents[1]
LOCKS = ("", "-dev", "-torch", "-gpu")
"""Lock files, by what follows their common name; the folder is not listed, as that would be an input of every test file."""
COMPILING = re.compile(r"cuda|nvidia|pocl|pyopencl|numpy|torch|triton|wgpu", re.IGNORECASE)
"""Installed packages that compile, or bind a compiler: others, such as the site's, must not empty the store."""
READING = ("backends", "kernels/build.py")
"""Parts of the package that decide what its caches hold for a key. Each is an input of every test file: no more than needed."""


def folder() -> Path:
    """Return the store's folder."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_cache_dir("toprung-tests"))


def key(*parts: str | bytes) -> str:
    """Return the hash of an entry's inputs, none of which can pass for the end of another."""
    each = (hashlib.sha256(part if isinstance(part, bytes) else part.encode()).digest() for part in parts)
    return hashlib.sha256(b"".join(each)).hexdigest()


def file(make: Callable[[Path], Any], *parts: str | bytes, suffix: str = "") -> Path:
    """Return the file of an entry with these inputs, which ``make`` writes if it is missing or damaged."""
    name = key(machine(), *parts)
    path = folder() / "entries" / name[:2] / f"{name}{suffix}"
    with suppress(OSError):
        written = path.read_bytes()
        if hashlib.sha256(written[:-32]).digest() == written[-32:]:
            if path.stat().st_mtime < time.time() - 86400:
                os.utime(path)
            return path
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{uuid.uuid4().hex}{suffix}")
    try:
        make(new)
        new.write_bytes((content := new.read_bytes()) + hashlib.sha256(content).digest())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path


def kept(make: Callable[[], bytes], *parts: str | bytes) -> bytes:
    """Return the content of an entry with these inputs, which ``make`` returns if it is missing or damaged."""
    return file(lambda path: path.write_bytes(make()), *parts).read_bytes()[:-32]


# What entries depend on


@functools.cache
def machine() -> str:
    """Return what every entry depends on: CPU, system's libraries, interpreter, packages that compile, lock files."""
    locks = [file_hash(path) for name in LOCKS if (path := ROOT / f"requirements{name}.lock").exists()]
    return json.dumps([cpu(), platform.libc_ver(), platform.machine(), sys.version, packages(), locks])


def cpu() -> str:
    """Return the CPU's model and features, for which PoCL compiles."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}))


def packages() -> list[str]:
    """Return names and versions of the installed packages that compile, by their folders: to read what is in them takes long."""
    return sorted({one.name for path in sys.path for one in Path(path).glob("*-info") if COMPILING.search(one.name)})


@functools.cache
def version(program: str) -> str:
    """Return what a program says to ``--version``; empty if it is missing."""
    path = shutil.which(program)
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout if path else ""


@functools.cache
def file_hash(path: Path) -> str:
    """Return the hash of a file, or of all files of a folder with their names."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return key(*(part for one in files for part in (str(one.relative_to(path)), one.read_bytes())))


def with_includes(text: str, near: Path = ROOT) -> str:
    """Return C++ with the files in place that it includes by quoted names, so that they are a part of its key."""

    def content(found: re.Match[str]) -> str:
        path = near / found[1]
        return with_includes(path.read_text().replace("#pragma once\n", ""), path.parent)

    return re.sub(r'^#include "(.+)"$', content, text, flags=re.M)


# Users


def nvrtc(compiled: Callable[..., tuple[str, bytes]]) -> Callable[..., tuple[str, bytes]]:
    """Return ``toprung.backends.nvrtc._compiled`` with what compiles kept. Folders of headers count by their content."""
    itself = inspect.getsource(compiled)
    release = functools.cache(lambda: compiled("", "version", ("--gpu-architecture=compute_80",), ptx=True)[1])

    def through(text: str, name: str, flags: tuple[str, ...], ptx: bool = False) -> tuple[str, bytes]:
        parts = [text, name, str(ptx)]
        for flag in flags:
            option, _, value = flag.partition("=")
            includes = option == "--include-path"
            parts += [option, (file_hash(Path(value)) if "include" in text else "") if includes else value]

        def make() -> bytes:
            log, code = compiled(text, name, flags, ptx)
            if not code:
                raise Refused(log)
            return json.dumps(log).encode() + b"\n" + code

        try:
            log, _, code = kept(make, "nvrtc", itself, release(), *parts).partition(b"\n")
        except Refused as refused:
            return refused.args[0], b""
        return json.loads(log), code

    return through


class Refused(Exception):
    """A text that does not compile, or a compiler that does not start: tried again each time."""


def disassembled(disassemble: Callable[[bytes], str], tool: Callable[[], str]) -> Callable[[bytes], str]:
    """Return ``toprung.lab.sass.machine_code.disassemble`` with its listings kept."""
    itself = inspect.getsource(disassemble)
    return lambda cubin: kept(lambda: disassemble(cubin).encode(), "listing", itself, version(tool()), cubin).decode()


def shared_object(text: str, flags: Iterable[str], headers: str = "", compiler: str = "g++") -> Path:
    """Return the library that g++ makes of a text with its includes; ``headers``, a text, is compiled once for all libraries."""
    flags, text = (*flags,), with_includes(text)

    def make(new: Path) -> None:
        words = ("-include", _header(folder(), compiler, flags, headers).with_suffix("")) if headers else ()
        _run(new, text, compiler, *flags, "-shared", *words)

    return file(make, "g++", version(compiler), version("ld"), *flags, headers, text, suffix=".so")


@functools.cache
def _header(where: Path, compiler: str, flags: tuple[str, ...], headers: str) -> Path:
    """Return what is compiled of headers, read and hashed once in a process: it is as large as fifty libraries."""
    words = compiler, *flags, "-x", "c++-header"
    return file(lambda new: _run(new, headers, *words), "g++", version(compiler), version("ld"), *flags, headers, suffix=".h.gch")


def _run(new: Path, text: str, *words: str | Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as written:
        written.write(text)
        written.flush()
        subprocess.run([*words, "-o", new, written.name], check=True)


def caches() -> dict[str, str]:
    """Return variables that move toprung's and PoCL's caches into the store, to folders named by what their own keys leave out."""
    source = [file_hash(ROOT / "src" / "toprung" / part) for part in READING]
    name = key(machine(), version("ld"), *pocl_cache.settings(), *source)[:16]
    return {variable: str(folder() / kind / name) for variable, kind in (("TOPRUNG_CACHE", "toprung"), ("POCL_CACHE_DIR", "pocl"))}


def prune(now: float | None = None) -> None:
    """Remove what has not been used for ``DAYS``, once a day: entries, binaries, and PoCL's folders, a program each."""
    now, said = now or time.time(), folder() / "pruned"
    with suppress(OSError):
        if said.stat().st_mtime > now - 86400:
            return
    said.parent.mkdir(parents=True, exist_ok=True)
    said.touch()
    for path in [*folder().glob("entries/*/*"), *folder().glob("toprung/*/*/*"), *folder().glob("pocl/*/*/*")]:
        with suppress(OSError):
            times = [one.stat() for one in (path, *path.rglob("*")) if one.is_file()]
            if max((max(t.st_atime, t.st_mtime) for t in times), default=path.stat().st_mtime) < now - 86400 * DAYS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
