"""Folders of the user's that toprung writes to, and how a file gets there whole or not at all."""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from toprung.errors import BadArgument, NotWritten

SET = "TOPRUNG_CACHE, POCL_CACHE_DIR (PoCL's) and XDG_CACHE_HOME (pyopencl's)"
"""Environment variables that move caches of compiled kernels."""


def cache_dir() -> Path:
    """Return the folder of what can be made again (``TOPRUNG_CACHE`` moves it); a temporary one if it cannot be written."""
    return writable(os.environ.get("TOPRUNG_CACHE") or of_user("user_cache_dir", "toprung"))


def data_dir() -> Path:
    """Return the folder of what was measured on this machine (``TOPRUNG_DATA`` moves it); a temporary one below another's home."""
    given = os.environ.get("TOPRUNG_DATA")
    return _data_dir(given or of_user("user_data_dir", "toprung"), bool(given))


HOMES = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "APPDATA", "USERPROFILE")
"""Environment variables that move a user's folders."""


@functools.cache
def _data_dir(folder: str, given: bool) -> Path:
    try:
        if not given:
            Path(folder, "any file").stat()
    except PermissionError:
        folder = ""  # HOME may be another user's
    except OSError:
        pass  # it is made when something is stored
    return Path(folder) if folder else _temporary() / "data"


STORE = "TOPRUNG_STORE"
"""Environment variable that, set to ``off``, makes toprung ignore the user's store and the shipped entries."""

STORE_FILE = "tuned.sqlite"
"""File of the user's store in the folder of data."""


def store_off() -> bool:
    """Return True if the environment says to ignore the user's store and the shipped entries.

    Raises
    ------
    BadArgument
        it says something else than ``on`` and ``off``
    """
    word = os.environ.get(STORE, "").lower()
    if word not in ("", "on", "off"):
        raise BadArgument(f"{STORE} is on or off, not {word!r}")
    return word == "off"


def has_store() -> bool:
    """Return True if the user has a store that can be read, and it is not switched off."""
    return not store_off() and os.access(data_dir() / STORE_FILE, os.R_OK)


def of_user(kind: str, program: str) -> str:
    """Return the folder of a kind of files, named as in platformdirs; empty for a user without a home."""
    return _of_user(kind, program, *map(os.environ.get, HOMES))


@functools.cache
def _of_user(kind: str, program: str, *homes: str | None) -> str:
    import platformdirs  # here, as tempfile below: a program that only imports toprung loads neither

    try:
        found: str = getattr(platformdirs, kind)(program, False)
    except RuntimeError:
        return ""
    return "" if found.startswith("~") else found


@functools.cache
def writable(folder: str, below: str = "toprung") -> Path:
    """Return a folder for a cache, made if it is missing; if it cannot be written, a temporary one, with a warning once a process.

    ``below``: name of what stands in for it in the temporary folder.
    """
    reason = unwritable(folder)
    if not reason:
        return Path(folder)
    problem = f"{folder or 'a cache'} cannot be written ({reason})"
    instead = _temporary() / below
    if not (worse := unwritable(str(instead))):
        _warn(f"{problem}: compiled kernels are kept in {_temporary()}")
        return instead
    _warn(f"{problem}, nor can {instead} ({worse}): kernels are compiled anew in each process")
    return Path(folder or instead)  # what is in it can still be read


ROOM = 2 << 20
"""Bytes that must be free where compiled kernels are kept: PoCL's files for a large kernel take up to 1.4 MB while it compiles."""


def unwritable(folder: str) -> str:
    """Return why no kernel can be kept in a folder, which is made if it is missing; empty if there is permission and room."""
    import tempfile

    if not folder:
        return "this user has no home folder"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # quotas and read-only mounts show only when something is written
            file.write(bytes(ROOM))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


@functools.cache
def _temporary() -> Path:
    """Return a temporary folder that nobody else can write; on systems with user numbers the same one in every process."""
    import tempfile

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
    """Warn of the first problem with a cache, with all that can be set."""
    if not _told:
        _told.append(problem)
        warnings.warn(f"{problem}. Set {SET} to folders that can be written", RuntimeWarning, stacklevel=4)


STALE = 60.0
"""Seconds after which an empty temporary file is left over: its writer locks it long before."""


STANDARD_OUTPUT = Path("-")
"""Path by which a user means standard output."""

IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EINVAL)
"""Reasons why a file that may be written cannot be replaced: its folder, a mount point, an owner who cannot be given it."""


def is_standard_output(path: Path) -> bool:
    """Return True for ``-``, and for the file or the pipe that standard output goes to, such as ``/dev/stdout``."""
    if path == STANDARD_OUTPUT:
        return True
    with suppress(OSError):  # standard output may be closed
        facts = path.stat()
        return not stat.S_ISCHR(facts.st_mode) and os.path.samestat(facts, os.fstat(1))
    return False


def is_stream(path: Path) -> bool:
    """Return True for standard output, a device or a pipe: it is written to once, and no other file stands beside it."""
    return is_standard_output(path) or (path.exists() and not path.is_file() and not path.is_dir())


def refusal(path: Path) -> str:
    """Return why a file cannot be written, empty if it can. No file is made, and no pipe opened: that would wait for its reader."""
    import tempfile

    try:
        if is_standard_output(path):
            return "" if sys.stdout is not None else "standard output is closed"
        if path.is_dir():
            return "it is a folder"
        if path.is_socket():
            return "it is a socket"
        if is_stream(path):
            return "" if os.access(path, os.W_OK) else "permission denied"
        target = Path(os.path.realpath(path))
        there = next(folder for folder in target.parents if folder.exists())
        if not there.is_dir():
            return f"{there} is no folder"
        if target.exists() or target.is_symlink():  # a link behind which realpath finds nothing leads to itself
            target.open("r+b").close()
        else:
            tempfile.TemporaryFile(dir=there).close()  # /proc lets root write, it says, and makes no file
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def publish(path: Path, content: bytes) -> None:
    """Write a file so that any reader sees all of it or none: written beside, then renamed.

    As with ``open`` a link is followed, a pipe or a device is written to, and a file keeps its mode and owner. A file that must
    not or cannot be replaced, such as one with several names, is written in place. What killed processes left half written in the
    folder is removed.
    """
    target = Path(os.path.realpath(path))
    facts = path.stat() if path.exists() else None
    if facts is not None and (not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1):
        path.write_bytes(content)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    _clean(target.parent)
    temporary = target.with_name(f".{target.name[:50]}.{os.urandom(4).hex()}.part")
    try:
        if facts is not None:
            target.open("r+b").close()  # a file that may not be written may not be replaced either
        with temporary.open("xb") as file, locked(temporary):  # with the mode that the umask leaves
            if facts is not None:
                _keep(temporary, facts)
            file.write(content)
            file.close()  # Windows renames no open file
            temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if facts is None or not isinstance(error, OSError) or error.errno not in IN_PLACE:
            raise
        target.write_bytes(content)


def _keep(temporary: Path, facts: os.stat_result) -> None:
    """Give a file the owner and the mode of the one it replaces."""
    own = temporary.stat()
    if (own.st_uid, own.st_gid) != (facts.st_uid, facts.st_gid):
        os.chown(temporary, facts.st_uid, facts.st_gid)
    temporary.chmod(stat.S_IMODE(facts.st_mode))


def publish_cached(path: Path, content: bytes) -> None:
    """Publish a file of a cache; where it cannot be written (a full disk, a quota) its content is made again next time."""
    with suppress(OSError):
        publish(path, content)


def deliver(path: Path, content: bytes) -> None:
    """Publish a file that somebody asked for; ``-`` is standard output.

    Raises
    ------
    NotWritten
        it cannot be written; its content lies in a temporary folder, which the message names. The cause is an error of standard
        output's, if that was meant; if its reader has gone nothing is kept
    """
    import tempfile

    try:
        if is_standard_output(path):
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        else:
            publish(path, content)
    except OSError as error:
        own, kept = is_standard_output(path), ""
        if not (own and isinstance(error, BrokenPipeError)):
            with suppress(OSError):  # the temporary folder may be on the same full disk
                publish(instead := Path(tempfile.mkdtemp(prefix="toprung-")) / path.name, content)
                kept = f": its content is kept in {instead}"
        raise NotWritten(f"{path} cannot be written ({error.strerror}){kept}") from (error if own else None)


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
