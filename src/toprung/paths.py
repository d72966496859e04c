"""Folders of the user's that toprung writes to, and how a file gets there whole or not at all."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import platformdirs

from toprung.errors import NotWritten

SET = "TOPRUNG_CACHE, POCL_CACHE_DIR (PoCL's) and XDG_CACHE_HOME (pyopencl's)"
"""Environment variables that move caches of compiled kernels."""


def cache_dir() -> Path:
    """Return the folder of what can be made again (``TOPRUNG_CACHE`` moves it); a temporary one if it cannot be written."""
    return writable(os.environ.get("TOPRUNG_CACHE") or of_user(platformdirs.user_cache_dir, "toprung"))


def data_dir() -> Path:
    """Return the folder of what was measured on this machine (``TOPRUNG_DATA`` moves it); a temporary one below another's home."""
    if given := os.environ.get("TOPRUNG_DATA"):
        return Path(given)
    home = of_user(platformdirs.user_data_dir, "toprung")
    return Path(home) if home and _may_look(home) else _temporary() / "data"


@functools.cache
def _may_look(folder: str) -> bool:
    """Return True unless this user may not look into a folder, or into one above it: HOME may be another user's."""
    try:
        Path(folder, "any file").stat()
    except PermissionError:
        return False
    except OSError:
        pass  # it is made when something is stored
    return True


def of_user(folder: Callable[[str, Literal[False]], str], program: str) -> str:
    """Return the folder of a program's files of a kind, by the system's customs; empty for a user who has no home folder."""
    try:
        found = folder(program, False)
    except RuntimeError:
        return ""
    return "" if found.startswith("~") else found


@functools.cache
def writable(folder: str, below: str = "toprung") -> Path:
    """Return a folder for a cache, made if it is missing; if it cannot be written, a temporary one, with a warning once a process.

    Parameters
    ----------
    folder : path of the folder
    below : name of what stands in for it in the temporary folder
    """
    reason = unwritable(folder)
    if not reason:
        return Path(folder)
    instead = _temporary() / below
    instead.mkdir(exist_ok=True)
    _warn(f"{folder or 'a cache'} cannot be written ({reason})")
    return instead


def unwritable(folder: str) -> str:
    """Return why no file can be made in a folder, which is made if it is missing; empty if one can."""
    if not folder:
        return "this user has no home folder"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"


@functools.cache
def _temporary() -> Path:
    """Return a temporary folder that nobody else can write; on systems with user numbers the same one in every process."""
    getuid = getattr(os, "getuid", None)
    if getuid is not None:
        folder = Path(tempfile.gettempdir()) / f"toprung-{getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            facts = folder.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == getuid() and not facts.st_mode & 0o022:
                return folder  # a binary that somebody else put there would be run
        except OSError:
            pass
    return Path(tempfile.mkdtemp(prefix="toprung-"))


_told: list[str] = []


def _warn(problem: str) -> None:
    """Warn that caches lie elsewhere: of the first problem only, with all that can be set."""
    if not _told:
        _told.append(problem)
        text = f"{problem}: compiled kernels are kept in {_temporary()}. Set {SET} to folders that can be written"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


STALE = 60.0
"""Seconds after which an empty temporary file is left over: its writer locks it long before."""


def publish(path: Path, content: bytes) -> None:
    """Write a file so that any reader sees all of it or none: written beside, then renamed. Links are followed, pipes written to.

    What killed processes left half written in the folder is removed.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a rename would put a file in place of a device or a pipe
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    _clean(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, locked(temporary):
            file.write(content)
            file.close()  # Windows renames no open file
            temporary.chmod(0o644)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def deliver(path: Path, content: bytes) -> None:
    """Publish a file that somebody asked for.

    Raises
    ------
    NotWritten
        it cannot be written; its content lies in a temporary folder, which the message names
    """
    try:
        publish(path, content)
    except OSError as error:
        instead = Path(tempfile.mkdtemp(prefix="toprung-")) / path.name
        publish(instead, content)
        raise NotWritten(f"{path} cannot be written ({error.strerror}): its content is kept in {instead}") from None


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Lock a file, made if it is missing, for the length of a ``with`` block; the system unlocks it if the process dies.

    Where nothing can be locked (no such locks on this system, a folder that cannot be written) nothing is; without ``wait``
    that is an OSError, and a file that another holds a BlockingIOError.
    """
    with ExitStack() as held:
        try:
            import fcntl

            file = held.enter_context(path.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)  # closing alone would leave it to a child that was forked meanwhile
        except (ImportError, OSError) as error:
            if not wait:
                raise error if isinstance(error, OSError) else OSError(str(error)) from None
        yield


@functools.cache
def _clean(folder: Path) -> None:
    """Remove temporary files of ``publish`` that no process holds, once for each folder."""
    for left in folder.glob(".*.part"):
        with suppress(OSError):
            facts = left.stat()
            if facts.st_size or time.time() - facts.st_mtime > STALE:
                with locked(left, wait=False):
                    left.unlink()
