"""Functions called in a forked child, for what a child may break or may not do."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

LONGEST = 300
"""Seconds after which a child ends: far more than any needs on a slow machine."""


def in_child(action: Callable[[], object]) -> str:
    """Return what a function returns, or raises, in a forked child, as text; "hangs" if the child says nothing."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, which tests mean to try
        child = os.fork()
    if not child:
        signal.alarm(LONGEST)
        try:
            said = str(action())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said or "hangs"
