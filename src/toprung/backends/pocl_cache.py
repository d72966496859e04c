"""PoCL's cache of kernels, filled by one process at a time.

PoCL keeps what it compiles in files under a name made of the program, and replaces one by removing it first. Of two processes
that build the same program at the same moment the second finds the file gone: its build fails, or it goes on without and crashes
at the launch (pocl/pocl issue 1480). Whoever builds through toprung therefore waits for who builds the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toprung.errors import NoRoom
from toprung.paths import ROOM, locked, of_user, unwritable, writable

PLATFORM = "Portable Computing Language"
LOCKS = 64
"""Files to lock: programs that fall on the same one wait for each other without need, which is rare, and no more files come."""


VARIABLE = "POCL_CACHE_DIR"
"""Environment variable: the folder of PoCL's cache, read when PoCL is first asked for its devices."""


def make_writable() -> None:
    """Give PoCL a temporary folder if its own cannot be written: it would say that there is no device."""
    given = os.environ.get(VARIABLE) or of_user("user_cache_dir", "pocl")
    found = str(writable(given, "pocl"))
    if found != given:
        os.environ[VARIABLE] = found


def need_room(what: str) -> None:
    """Raise NoRoom if PoCL's folder has no room for a kernel's files: LLVM ends the process where it cannot write them.

    PoCL goes on with the folder that it found at first, so that a disk that fills later leaves nothing to fall back to.
    """
    if reason := unwritable(str(folder())):
        advice = f"make room for {ROOM >> 20} MiB, or start again with {VARIABLE} set to another folder"
        raise NoRoom(f"{what} cannot be compiled: PoCL's folder {folder()} cannot be written ({reason}); {advice}")


def folder() -> Path:
    """Return the folder of PoCL's cache."""
    return Path(os.environ.get(VARIABLE) or of_user("user_cache_dir", "pocl"))


def settings() -> list[str]:
    """Return PoCL's and pyopencl's environment variables that are set, but for those that leave machine code as it is."""
    names = sorted(name for name in os.environ if name.startswith("POCL_") or name == "PYOPENCL_BUILD_OPTIONS")
    return [f"{name}={os.environ[name]}" for name in names if name not in (VARIABLE, "POCL_DEBUG")]


@contextmanager
def alone(options: str) -> Iterator[None]:
    """Keep other processes and threads from building the same program for the length of a ``with`` block.

    Where nothing can be locked (no such locks on this system, a folder that cannot be written) nothing is, as PoCL itself does.

    Parameters
    ----------
    options : of the program. PoCL's name for it is made of them and of the text without comments; who has the same program has
        the same options, and programs that share only those seldom are built at once
    """
    path = lock_of(options)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        yield


def lock_of(options: str) -> Path:
    """The file that is locked while a program is built: beside PoCL's files, so that who shares those shares it."""
    return folder() / f"toprung-{hashlib.sha256(options.encode()).digest()[0] % LOCKS}.lock"
