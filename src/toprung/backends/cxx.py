"""Native code: libraries that the wheel brings, and those that a C++ compiler makes on request and the cache keeps."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from toprung.backends.waiting import finished
from toprung.errors import BuildError, MissingExtra
from toprung.paths import cache_dir, publish

FOLDER = Path(__file__).parents[1] / "native" / "bin"
"""Folder of the wheel's libraries; a clone and the wheel of pure Python have none."""

FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden")


def kept(name: str, sources: Sequence[Path], *more: object) -> Path:
    """Return the file in the cache of a library that is compiled of sources, whether it has been or not.

    Parameters
    ----------
    name : start of the file's name, with a folder before it
    sources : files whose text decides what it is
    more : whatever else decides it
    """
    parts = (*(path.read_text("utf-8") for path in sources), *more, *FLAGS)
    key = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
    return cache_dir() / f"{name}-{platform.machine()}-{key}.so"


def pytorch(folder: Path) -> tuple[str, ...]:
    """Return the flags with which a source that uses PyTorch's C++ API is compiled; ``folder`` is that of the package ``torch``."""
    return f"-I{folder / 'include'}", f"-L{folder / 'lib'}", "-ltorch_cpu", "-lc10"


def compile_library(path: Path, sources: Sequence[Path], *flags: str, compiler: Sequence[str] = ()) -> None:
    """Compile a library of C++ sources; the compiler is g++, or that of ``CXX``, unless its command is given.

    Raises
    ------
    MissingExtra
        there is no compiler
    BuildError
        it does not compile
    NotReady
        the compiler does not end
    """
    named = compiler or (os.environ.get("CXX") or "g++",)
    if shutil.which(named[0]) is None:
        raise MissingExtra(f"native code needs a C++ compiler, and {named[0]} is not installed: install it, or name another by CXX")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.so")
        words = [*named, *FLAGS, *map(str, sources), "-o", str(made), *flags]
        done = finished(words, "try again on a machine that is less busy, or name another compiler by CXX")
        if done.returncode:
            raise BuildError(sources[0].name, " ".join((*FLAGS, *flags)), " ".join(named), done.stderr)
        publish(path, made.read_bytes())
