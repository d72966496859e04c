"""Plans of a CUDA session for the launcher in C++, ``launch.cpp``, which runs them without Python, from any thread."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toprung.backends.base import Buffer
from toprung.backends.cuda import CUDASession
from toprung.backends.launcher import checked, described
from toprung.backends.plan import Address, First, Handle, KernelLaunch, Map, Plan, Scalar
from toprung.errors import LaunchError

SOURCE = Path(__file__).parents[1] / "native" / "launch.cpp"

ADDRESS, SCALAR, MAP, BYTES = range(4)
"""Kinds of arguments, as ``Kind`` in ``launch.cpp``."""

WHEN = ("", "alpha", "beta", "no beta")


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Return a library that has the launcher, with the types of its functions; see ``launch.h``."""
    word, pointer = ctypes.c_uint64, ctypes.c_void_p
    library.toprung_plan_new.argtypes, library.toprung_plan_new.restype = [pointer, ctypes.c_size_t], pointer
    library.toprung_plan_free.argtypes, library.toprung_plan_free.restype = [pointer], None
    library.toprung_flags.argtypes, library.toprung_flags.restype = [word] * 4, None
    library.toprung_launch.argtypes = [pointer, pointer, ctypes.c_double, ctypes.c_double, pointer]
    return library


class NativePlan:
    """A plan in the launcher's memory; it keeps all that the plan needs.

    Attributes
    ----------
    handle : address of the ``toprung_plan``, which is freed with this object: no launch of it may be under way then

    Raises
    ------
    LaunchError
        the launcher cannot have it: the device has no grid of that size, or a launch has too many arguments
    """

    def __init__(self, library: ctypes.CDLL, session: CUDASession, plan: Plan) -> None:
        self.library, self.session, self.plan = library, session, plan
        words = np.array(list(words_of(session, plan)), np.uint64)
        self.handle = library.toprung_plan_new(words.ctypes.data, words.size)
        if not self.handle:
            raise LaunchError(f"the launcher in C++ takes no plan of {len(plan.launches)} launches on {session.device}")
        weakref.finalize(self, library.toprung_plan_free, self.handle)

    def prepare(self, stream: int) -> None:
        """Allocate what a stream needs before the plan is launched there; not while it is captured."""
        if nbytes := self.plan.flags_bytes:
            self.library.toprung_flags(int(self.session._context), stream, self.session.flags(stream, nbytes), nbytes)


def words_of(session: CUDASession, plan: Plan) -> Iterator[int]:
    """Yield a plan as unsigned words of 64 bits, in the order in which ``toprung_plan_new`` reads them."""
    scales = plan.scales or ()
    yield from (int(session._context), plan.workspace_bytes, plan.flags_bytes)
    yield from (plan.scales is not None, len(plan.launches), len(scales))
    for launch in (*plan.launches, *scales):
        yield from _launch(session, launch)


def _launch(session: CUDASession, launch: KernelLaunch) -> Iterator[int]:
    kernel: Any = launch.kernel
    grid, block = checked(f"{described(kernel.source)} on {session.device}", kernel, launch.groups, launch.local)
    overlaps = launch.overlaps and session._can_overlap and kernel.source.waits
    yield from (int(kernel.function), *grid, *block, kernel.dynamic, overlaps)
    yield from (WHEN.index(launch.when), len(launch.arguments))
    for argument in launch.arguments:
        yield from _argument(argument)


def _argument(argument: Any) -> Sequence[int]:
    if isinstance(argument, Handle):
        return ADDRESS, argument.slot, 0
    if isinstance(argument, Address):
        return ADDRESS, argument.slot, argument.plus % 2**64
    if isinstance(argument, Scalar):
        return SCALAR, argument.number
    if isinstance(argument, Map):
        m = argument
        return MAP, m.slot, m.plus % 2**64, ("fp16", "fp32").index(m.dtype), m.rows, m.cols, m.stride, *m.box
    if isinstance(argument, First):
        argument = np.int64(argument.plus)
    elif not isinstance(argument, np.generic):
        buffer: Buffer = argument
        argument = np.uint64(int(buffer.handle))
    content = argument.tobytes()
    words = np.frombuffer(content.ljust(-(-len(content) // 8) * 8, b"\0"), np.uint64)
    return BYTES, len(content), *words.tolist()
