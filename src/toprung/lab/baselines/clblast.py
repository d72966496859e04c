"""CLBlast, a tuned OpenCL BLAS, through ctypes: the library as the system has it, our memory, our queue."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from typing import Any

from toprung import backends
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.lab.baselines import Peer
from toprung.lab.baselines._twin import placed_through
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice
from toprung.oracle.placed import OnDevice

NAMES = ("libclblast.so.1", "libclblast.dylib", "clblast.dll")
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112

_SIZE, _POINTER, _FLOAT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_float
_MATRIX: list[Any] = [_POINTER, _SIZE, _SIZE]  # memory, elements to skip, leading dimension


@functools.cache
def _library() -> Any:
    """The library, or None where none is installed."""
    for name in (*NAMES, ctypes.util.find_library("clblast")):
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is None:
            continue
        head: list[Any] = [ctypes.c_int] * 3 + [_SIZE] * 3 + [_FLOAT]
        library.CLBlastSgemm.argtypes = [*head, *_MATRIX, *_MATRIX, _FLOAT, *_MATRIX, _POINTER, _POINTER]
        library.CLBlastSgemmStridedBatched.argtypes = [
            *head, *_MATRIX, _SIZE, *_MATRIX, _SIZE, _FLOAT, *_MATRIX, _SIZE, _SIZE, _POINTER, _POINTER,
        ]  # fmt: skip
        return library
    return None


class CLBlastPeer(Peer):
    """``CLBlastSgemm``; its first call on a device compiles for seconds."""

    name = "clblast"
    title = "CLBlast"
    kinds = ("gpu",)

    def absent(self, device: Device) -> str:
        # why the library is missing, or OpenCL does not reach the device; empty if all is there
        if backends.twin(device, "opencl") is None:
            return "OpenCL does not reach this device; see toprung devices"
        return "" if _library() else "the CLBlast library is not installed; apt install libclblast1, or brew install clblast"

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        problem = self.product(placed)
        placed = placed_through(placed, "opencl")
        session: Any = placed.session
        operands = []
        for m in problem.matrices:
            part: Any = placed.parts[m.name]
            stride = (m.rows // problem.batch * m.ld,) if problem.batch > 1 else ()
            operands.append((part.raw.int_ptr, 0, m.ld, *stride))
        a, b, c = operands
        turns = (TRANSPOSED if letter == "T" else PLAIN for letter in problem.trans)
        head = (ROW_MAJOR, *turns, problem.M, problem.N, problem.K, problem.alpha)
        queue = ctypes.c_void_p(session.queue.int_ptr)
        batch = (problem.batch,) if problem.batch > 1 else ()
        name = "CLBlastSgemmStridedBatched" if batch else "CLBlastSgemm"
        call, arguments = getattr(_library(), name), (*head, *a, *b, problem.beta, *c, *batch, ctypes.byref(queue), None)

        def launch() -> None:
            if status := call(*arguments):
                raise LaunchError(f"{name} for {problem} on {session.device}: status {status}")

        return BoundOnDevice(placed, launch)


PEER = CLBlastPeer()
