"""Plans of a kernel that computes nothing, on the stand-in for NVIDIA's driver, and the log of what was launched."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import sys
from pathlib import Path

import torch

LOG = Path(os.environ["TOPRUNG_DRIVER_LOG"])
CONTEXT, LENT, SEEN = 7, 1024, [0]


def log() -> list[str]:
    """Return the lines that the stand-in has written since the last time."""
    text = LOG.read_text()
    new, SEEN[:] = text[SEEN[0] :], [len(text)]
    return new.splitlines()


def kernel(name: str, *sizes: int) -> int:
    """Return the handle of a kernel that has parameters of these sizes. The program's second argument is the stand-in's file."""
    stand_in = ctypes.CDLL(sys.argv[2])
    stand_in.driver_function.restype = ctypes.c_uint64
    made: int = stand_in.driver_function(name.encode(), (ctypes.c_int * len(sizes))(*sizes), len(sizes))
    return made


def plan(
    library: ctypes.CDLL, threads: tuple[int, ...] = (32,), flags: int = 0, packed: bool = False, group: int = 0
) -> int:  # fmt: skip
    """Return a plan of launches whose arguments are A, B, C, D, scratch memory, α and β.

    ``threads``: threads of a block, for each launch, 1024 at most. ``packed``: the terms of a prepacked B are an argument before α.
    The last operand of a ``group`` is an argument of its own.
    """
    count = 6 if packed else 5
    arguments = [word for slot in range(count) for word in (0, slot, 0)] + [1, 0, 1, 1]
    arguments += [3, 8, 1, 0, 0, group - 1, 0] if group else []
    made_of = kernel("product", *[8] * count, 4, 4, *[8] * bool(group))
    launches = [[made_of, 1, 1, 1, each, 1, 1, 0, 0, 0, count + 2 + bool(group), *arguments] for each in threads]
    words = [CONTEXT, LENT, flags, 0, len(threads), 0, *itertools.chain(*launches)]
    made: int = library.toprung_plan_new((ctypes.c_uint64 * len(words))(*words), len(words))
    return made


def launched(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor | None = None, alpha: float = 1, beta: float = 0
) -> bool:
    """Return True if the log has one launch, with these arguments."""
    (line,) = log()
    *addresses, lent, first, second = line.split(" | ")[1:]
    scalars = [struct.unpack("<f", int(one, 16).to_bytes(4, "little"))[0] for one in (first, second)]
    wanted = [f"{0 if one is None else one.data_ptr():x}" for one in (a, b, c, d)]
    return addresses == wanted and scalars == [alpha, beta] and int(lent, 16) > 0


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
