"""Text that a runtime prints past Python, caught."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from toprung.forks import in_child, renewed

_capturing = renewed(threading.Lock())

_saved: list[int] = []
"""Copy of standard error's descriptor while that is caught; none where it is closed."""


@in_child
def _give_back() -> None:
    """Give standard error back to a child that was forked while another thread's compiler was caught."""
    for saved in _saved:
        os.dup2(saved, 2)
    _saved.clear()


@contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Catch what a compiler prints straight to file descriptor 2, so that it lands in the log and not on the screen."""
    if sys.stderr is not None:
        sys.stderr.flush()
    with _capturing:  # of two threads at once one would put back the other's file
        with suppress(OSError):  # of a daemon's that is closed: the file below may get its number
            _saved.append(os.dup(2))
        with tempfile.TemporaryFile() as file:
            if file.fileno() != 2:
                os.dup2(file.fileno(), 2)

            def text() -> str:
                file.seek(0)
                return file.read().decode(errors="replace")

            try:
                yield text
            finally:
                if _saved:
                    os.dup2(_saved[0], 2)
                    os.close(_saved.pop())
                elif file.fileno() != 2:
                    os.close(2)
