"""Waiting for a device or a program.

Ctrl-C ends the wait for a device, even for a kernel that never ends. Python's end waits for daemon threads.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any

from toprung.errors import NotReady
from toprung.forks import in_child

if TYPE_CHECKING:
    import subprocess

GRACE = 1.0
"""Seconds after Ctrl-C that a device may still take to end what it is doing."""

_abandoned: list[threading.Event] = []
"""Calls that did not return, by the event of their return."""

FAREWELL = 5.0
"""Seconds that the interpreter waits at its end for products of daemon threads."""

LIMIT = 1800.0
"""Seconds that a program may take.

C++ with PyTorch's headers compiles in one minute, on a crowded machine in ten."""


def finished(words: Sequence[str], advice: str, limit: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program without input, and return its exit status and output.

    ``limit``: seconds after which it is stopped, by default ``LIMIT``.

    Raises
    ------
    NotReady
        it did not end in time and was killed; the text ends with ``advice``
    """
    import subprocess  # takes longer to import than most of toprung, and few programs start another

    limit = LIMIT if limit is None else limit
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise NotReady(f"{words[0]} did not end within {limit:g} s and was stopped: {advice}") from None


class _Gate(ContextDecorator):
    """Block, or function, that a daemon thread is not in when Python ends: up to 3.13 the process aborts if it is in a runtime.

    At the end products under way are waited for, and daemon threads begin no others.
    """

    def __init__(self) -> None:
        self._inside: list[int] = []
        self._closed = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._closed and me not in self._inside and threading.current_thread().daemon:
            threading.Event().wait()  # until the process has ended
        self._inside.append(me)

    def __exit__(self, *_: object) -> None:
        self._inside.remove(threading.get_ident())

    def close(self) -> None:
        """Let no daemon thread in any more, and wait a little for those that are."""
        self._closed, end = True, time.monotonic() + FAREWELL
        while set(self._inside) - {threading.get_ident()} and time.monotonic() < end:
            time.sleep(0.001)

    def empty(self) -> None:
        """Forget the threads that a forked child does not have."""
        self._inside[:] = [thread for thread in self._inside if thread == threading.get_ident()]


gate = _Gate()
atexit.register(gate.close)
in_child(gate.empty)


class NotEnded(KeyboardInterrupt):
    """Ctrl-C or SIGTERM while the device was busy, and was still busy ``GRACE`` seconds later."""


def patiently(wait: Callable[..., Any], *args: Any) -> Any:
    """Return ``wait(*args)``, called in a thread beside: Python holds signals back from a main thread that is in C code.

    Raises
    ------
    NotEnded
        a signal came, and the call did not return: it is abandoned, and with it the device's queue
    """
    found: list[Any] = []
    raised: list[BaseException] = []
    over, begin = threading.Event(), time.monotonic()  # an event: Python 3.11 takes a thread whose join is interrupted for ended

    def beside() -> None:
        try:
            found.append(wait(*args))
        except BaseException as error:
            raised.append(error)
        over.set()

    threading.Thread(target=beside, daemon=True).start()
    try:
        over.wait()
    except KeyboardInterrupt:
        if over.wait(GRACE):
            raise
        _abandoned.append(over)
        raise NotEnded(f"did not end: it was stopped after {time.monotonic() - begin:.0f} s") from None
    if raised:
        raise raised[0]
    return found[0]


def abandoned() -> bool:
    """Return True if a device is still busy with what was abandoned: closing it, or ending Python in good order, may hang."""
    return not all(one.is_set() for one in _abandoned)
