"""cuBLAS on a matrix and a vector: rung 0 of the matvec ladder on NVIDIA's GPUs."""

from __future__ import annotations

import ctypes
from typing import Any

from toprung.backends.cublas import MISSING, check, library
from toprung.device import Device
from toprung.errors import Unsupported
from toprung.lab.baselines import Peer
from toprung.lab.baselines._cublas import handle
from toprung.lab.baselines._twin import no_cuda, placed_through, stream
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice


class CuBLASGemvPeer(Peer):
    """``cublasSgemv``."""

    name = "cublas_gemv"
    title = "cuBLAS"
    kinds = ()  # gemv has no bench of its own

    def absent(self, device: Device) -> str:
        # why there is no GPU for it, or no library; empty if both are there
        return no_cuda(device) or ("" if library() else MISSING)

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        return routine == "gemv" and "nvidia" in device.vendor.lower() and device.kind == "gpu"

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        problem = placed.operands.problem
        if not isinstance(problem, Gemv):
            raise Unsupported(f"{self.name} multiplies a matrix and a vector; {problem} is another routine's")
        if not problem.M or not problem.N:
            raise Unsupported(f"{self.title} does not compute {problem}: no empty matrices")
        placed = placed_through(placed, "cuda")
        session: Any = placed.session
        parts: Any = placed.parts
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        call = library().cublasSgemv_v2
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        call.argtypes = [
            pointer, integer, integer, integer, pointer, pointer, integer, pointer, integer, pointer, pointer, integer,
        ]  # fmt: skip
        # what lies in rows is the transpose of a column-major N×M matrix
        arguments = (
            handle(stream(session)), int(problem.trans == "N"), problem.N, problem.M, ctypes.byref(alpha), parts["A"].pointer,
            problem.lda, parts["x"].pointer, problem.incx, ctypes.byref(beta), parts["y"].pointer, problem.incy,
        )  # fmt: skip

        def launch(kept: object = (parts, alpha, beta)) -> None:
            if status := call(*arguments):
                check(status, f"cublasSgemv for {problem}")

        return BoundOnDevice(placed, launch)


PEER = CuBLASGemvPeer()
