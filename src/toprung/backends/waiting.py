"""Waiting for a device so that Ctrl-C ends the wait, even for a kernel that never ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

GRACE = 1.0
"""Seconds after Ctrl-C that a device may still take to end what it is doing."""

_abandoned: list[threading.Event] = []
"""Calls that did not return, by the event of their return."""


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
