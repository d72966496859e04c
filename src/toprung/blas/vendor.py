"""What is installed: cuBLAS as a way to compute a call, in the caller's stream."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from toprung.backends.base import Session
from toprung.blas.call import Call, GemmCall
from toprung.blas.kernel import Run
from toprung.device import Device
from toprung.peers import _cublas

_lock = threading.Lock()
"""A handle serves one call at a time."""

_handles: dict[tuple[int, int], Any] = {}
"""A handle for each context and stream, kept, because making one takes long."""


def _handle(context: int, stream: int) -> Any:
    if (context, stream) not in _handles:
        _handles[context, stream] = _cublas._handle.__wrapped__(stream)
    return _handles[context, stream]


def lacking(device: Device) -> str:
    """Why cuBLAS cannot take part; empty if it can."""
    if device.backend != "cuda":
        return "it works in CUDA's memory, and this is a session of another kind"
    return "" if _cublas._library() else "no cuBLAS library is installed; pip install nvidia-cublas (PyTorch brings it, too)"


def cublas(session: Session, call: Call, choice: Any) -> Run:
    """``cublasGemmEx``, or its strided batch. A vector is a matrix with one column. TF32 where the choice says so."""
    library: Any = _cublas._library()
    g = call if isinstance(call, GemmCall) else _as_product(call)
    # column-major: Cᵀ = op(B)ᵀ · op(A)ᵀ, so B comes first and M and N change places
    shape = (int(g.trans_b), int(g.trans_a), g.N, g.M, g.K)
    alpha, beta = ctypes.c_float(), ctypes.c_float()
    pa, pb = ctypes.byref(alpha), ctypes.byref(beta)
    f32, algorithm = _cublas.R_32F, _cublas.DEFAULT_ALGORITHM
    kind = _cublas.COMPUTE_TF32 if dict(choice.options).get("TF32") else _cublas.COMPUTE_32F
    context = int(session._context)  # type: ignore[attr-defined]
    current = session.current  # type: ignore[attr-defined]  # only CUDA's sessions get here
    simple, strided = library.cublasGemmEx, library.cublasGemmStridedBatchedEx

    def run(
        a: int, offset_a: int, b: int, offset_b: int, c: int, offset_c: int, first: float, second: float, queue: Any = None
    ) -> None:
        left, right, out = (b + 4 * offset_b, f32, g.ldb), (a + 4 * offset_a, f32, g.lda), (c + 4 * offset_c, f32, g.ldc)
        with _lock, current():
            alpha.value, beta.value = first, second
            handle = _handle(context, int(session.queue if queue is None else queue))
            if g.batch == 1:
                status = simple(handle, *shape, pa, *left, *right, pb, *out, kind, algorithm)
            else:
                left, right, out = (*left, g.stride_b), (*right, g.stride_a), (*out, g.stride_c)  # type: ignore[assignment]
                status = strided(handle, *shape, pa, *left, *right, pb, *out, g.batch, kind, algorithm)
        if status:
            _cublas._check(status, f"cuBLAS for {call}")

    return run


def _as_product(call: Any) -> GemmCall:
    """A GEMV as a GEMM: x a column whose rows are incx apart. Negative increments never get here."""
    return GemmCall(call.length, 1, call.depth, trans_a=call.trans, lda=call.lda, ldb=call.incx, ldc=call.incy)
