"""Other processes, as ``/proc`` shows them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def running() -> dict[int, tuple[int, float]]:
    """Return parent and CPU seconds of each process that has not ended, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *more = path.read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(path.parent.name)] = int(parent), (int(more[9]) + int(more[10])) / os.sysconf("SC_CLK_TCK")
    return found


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    return [child for child, (parent, _) in running().items() if parent == pid]
