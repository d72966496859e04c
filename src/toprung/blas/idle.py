"""Reasons why another library's products gain nothing on this machine: told once on standard error, and written in reports."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable

from toprung.backends import cuda
from toprung.dispatch.select import ORDINARY, unsuited

_told: set[str] = set()


def reason(theirs: str, gpus: Callable[[], int], number: int | None = None) -> str:
    """Return why all or most products on GPUs stay another library's, as a sentence; empty where toprung is faster.

    Parameters
    ----------
    theirs : the library's name
    gpus : returns the number of CUDA devices that it can use
    number : the one that it computes on; None where CUDA must not be started, for the program may still fork
    """
    if not gpus():
        return f"all products stay {theirs}'s: {theirs} sees no CUDA device"
    if missing := cuda.uninstalled():
        return f"all products stay {theirs}'s: {missing}"
    if number is None:
        return ""
    device = next((d for d in cuda.backend().devices() if d.handle == number), None)
    if device is None:
        return f"all products stay {theirs}'s: {' '.join(cuda.backend().advice())}"
    why = unsuited(device, ORDINARY, "fp32x")
    return f"most products stay {theirs}'s: {why}" if why else ""


@functools.cache
def tell(theirs: str, gpus: Callable[[], int], number: int | None = None) -> str:
    """Write the reason to standard error, once for each library, and return it."""
    why = reason(theirs, gpus, number)
    say(theirs, why)
    return why


def say(topic: str, line: str) -> None:
    """Write a line to standard error, one for each topic; not in workers, nor in ranks of torchrun but a machine's first."""
    first = multiprocessing.parent_process() is None and os.environ.get("LOCAL_RANK", "0") == "0"
    if first and line and topic not in _told:
        _told.add(topic)
        print(f"toprung: {line}", file=sys.stderr)
