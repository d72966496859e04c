"""cuBLAS, called through ctypes: whichever package or toolkit brought the library, our memory, our stream, no copies."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from toprung.backends.base import Buffer
from toprung.backends.cublas import COMPUTE_32F, DEFAULT_ALGORITHM, MISSING, R_16F, R_32F, check, create_handle, library
from toprung.device import Device
from toprung.lab.baselines import Peer
from toprung.lab.baselines._twin import no_cuda, placed_through, stream
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice, Promise
from toprung.oracle.placed import OnDevice, copied

handle = functools.cache(create_handle)


class CuBLASPeer(Peer):
    """``cublasGemmEx`` with one type of operands and one way to compute."""

    kinds = ("gpu",)

    def __init__(self, name: str, title: str, promise: Promise, compute: int = COMPUTE_32F, operands: int = R_32F) -> None:
        self.name, self.title, self.promise, self._compute, self._type = name, title, promise, compute, operands

    def absent(self, device: Device) -> str:
        # why there is no GPU for it, or no library; empty if both are there
        return no_cuda(device) or ("" if library() else MISSING)

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        return self.promise.precision == "fp32" and routine == "gemm" and "nvidia" in device.vendor.lower() and device.kind == "gpu"

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        # bind the session's memory; narrower operands are made once, beforehand
        problem = self.product(placed)
        placed = placed_through(placed, "cuda")
        session: Any = placed.session
        parts: dict[str, Buffer] = dict(placed.parts)
        if self._type == R_16F:
            for m in problem.matrices:
                if not m.output:
                    flat = np.zeros(m.rows * m.ld, np.float32)
                    flat.reshape(m.rows, m.ld)[:, : m.cols] = placed.operands.matrices[m.name]
                    with np.errstate(over="ignore"):
                        half = flat.astype(np.float16)
                    parts[m.name] = copied(half, session)
        a, b, c = problem.matrices
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        # column-major: Cᵀ = op(B)ᵀ · op(A)ᵀ, so B comes first and M and N change places
        shape = (int(problem.trans[1] == "T"), int(problem.trans[0] == "T"), problem.N, problem.M, problem.K)
        operands: list[tuple[int, ...]] = [
            (parts[m.name].pointer, R_32F if m.output else self._type, m.ld, m.rows // problem.batch * m.ld)  # type: ignore[attr-defined]
            for m in (b, a, c)
        ]
        scalars = (ctypes.byref(alpha), ctypes.byref(beta))
        if problem.batch == 1:
            call, name = library().cublasGemmEx, "cublasGemmEx"
            operands = [o[:3] for o in operands]
            last: tuple[int, ...] = (self._compute, DEFAULT_ALGORITHM)
        else:
            call, name = library().cublasGemmStridedBatchedEx, "cublasGemmStridedBatchedEx"
            last = (problem.batch, self._compute, DEFAULT_ALGORITHM)
        left, right, out = operands
        arguments = (handle(stream(session)), *shape, scalars[0], *left, *right, scalars[1], *out, *last)

        def launch(kept: object = (parts, alpha, beta)) -> None:
            if status := call(*arguments):
                check(status, f"{name} for {problem}")

        return BoundOnDevice(placed, launch)
