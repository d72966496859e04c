"""PoCL's cache of kernels, filled by one process at a time.

PoCL keeps what it compiles in files under a name made of the program, and replaces one by removing it first. Of two processes
that build the same program at the same moment the second finds the file gone: its build fails, or it goes on without and crashes
at the launch (pocl/pocl issue 1480). Whoever builds through toprung therefore waits for who builds the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

PLATFORM = "Portable Computing Language"
LOCKS = 64
"""Files to lock: programs that fall on the same one wait for each other without need, which is rare, and no more files come."""


@contextmanager
def alone(program: str) -> Iterator[None]:
    """Keep other processes and threads from building the same program for the length of a ``with`` block.

    Where nothing can be locked (no such locks on this system, a folder that cannot be written) nothing is, as PoCL itself does.

    Parameters
    ----------
    program : everything that tells the program from others: text and options
    """
    handle = _locked(lock_of(program))
    try:
        yield
    finally:
        if handle is not None:
            _unlock(handle)


def lock_of(program: str) -> Path:
    """The file that is locked while a program is built: beside PoCL's files, so that who shares those shares it."""
    folder = Path(os.environ.get("POCL_CACHE_DIR") or platformdirs.user_cache_dir("pocl"))
    return folder / f"toprung-{hashlib.sha256(program.encode()).digest()[0] % LOCKS}.lock"


def _locked(path: Path) -> int | None:
    """A handle that holds a file's lock; the system takes it back if the process dies."""
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except BaseException as error:
        os.close(handle)
        if isinstance(error, OSError):
            return None
        raise
    return handle


def _unlock(handle: int) -> None:
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone would leave it to a child that was forked meanwhile
    os.close(handle)
