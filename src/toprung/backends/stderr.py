"""Text that a runtime prints past Python, caught."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toprung.forks import renewed

_capturing = renewed(threading.Lock())


@contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Catch what a compiler prints straight to file descriptor 2, so that it lands in the log and not on the screen."""
    sys.stderr.flush()
    with _capturing, tempfile.TemporaryFile() as file:  # of two threads at once one would put back the other's file
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)

        def text() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
