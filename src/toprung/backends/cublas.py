"""cuBLAS through ctypes: whichever package or toolkit brought the library. Types, versions, handles."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

from toprung.backends import cuda_libraries
from toprung.backends.base import Session
from toprung.backends.cuda import beside_captures
from toprung.device import Device
from toprung.errors import LaunchError, let_through
from toprung.forks import renewed
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc

MISSING = "no cuBLAS library is installed; pip install nvidia-cublas (PyTorch brings it, too)"

# cudaDataType_t, cublasComputeType_t and cublasGemmAlgo_t
R_32F, R_16F, R_16BF = 0, 2, 14
COMPUTE_32F, COMPUTE_TF32 = 68, 77
DEFAULT_ALGORITHM = -1

TYPES = {"float32": R_32F, "float16": R_16F, "bfloat16": R_16BF}
"""cudaDataType_t of the types that A and B may have."""

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_OPERAND: list[Any] = [
    _POINTER,
    _INT,
    _INT,
    _LONG,
]  # address, type, leading dimension, elements from one matrix of the batch to the next


@functools.cache
def library() -> Any:
    """Return the library, or None where none is installed."""
    if not importlib.util.find_spec("cuda") or not importlib.util.find_spec("cuda.pathfinder"):
        return None
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    cuda_libraries.prefer("cublas")
    try:
        library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (DynamicLibNotFoundError, OSError, RuntimeError) as error:
        let_through(error)
        return None
    library.cublasCreate_v2.argtypes = [_POINTER]
    library.cublasSetStream_v2.argtypes = [_POINTER, _POINTER]
    library.cublasGetStatusString.argtypes = [_INT]
    library.cublasGetStatusString.restype = ctypes.c_char_p
    library.cublasGemmStridedBatchedEx.argtypes = [
        _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, *_OPERAND, *_OPERAND, _POINTER, *_OPERAND, _INT, _INT, _INT,
    ]  # fmt: skip
    library.cublasGemmEx.argtypes = [
        _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, *_OPERAND[:3], *_OPERAND[:3], _POINTER, *_OPERAND[:3], _INT, _INT,
    ]  # fmt: skip
    return library


@functools.cache
def version() -> str:
    """Return the library's name and version, empty where none is installed."""
    found = library()
    if found is None:
        return ""
    parts = [_INT() for _ in range(3)]
    for kind, part in enumerate(parts):  # libraryPropertyType: major, minor, patch level
        check(found.cublasGetProperty(kind, ctypes.byref(part)), "cublasGetProperty")
    return "cublas " + ".".join(str(part.value) for part in parts)


def check(status: int, what: str) -> None:
    """Raise LaunchError for a status that is not success."""
    if status:
        raise LaunchError(f"{what}: {library().cublasGetStatusString(status).decode()}")


def create_handle(stream: int) -> ctypes.c_void_p:
    """Return a new cuBLAS handle for a stream of the context that is current. Making one takes long: keep it."""
    handle = ctypes.c_void_p()
    with beside_captures():  # it allocates, and the stream may be captured already when it gets its first product
        check(library().cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    check(library().cublasSetStream_v2(handle, stream), "cublasSetStream")
    return handle


def unsupported(device: Device, desc: Desc) -> str:
    """Return the reason why cuBLAS is missing or does not support a product; empty if it does."""
    if device.backend != "cuda":
        return f"cuBLAS multiplies on CUDA devices, and {device} is none"
    if not library():
        return MISSING
    return "negative increments" if desc.is_vector and (desc.incx < 0 or desc.incy < 0) else ""


_lock = renewed(threading.Lock())
"""Lock around every call: a handle serves one call at a time."""

_handles: dict[tuple[int, int], Any] = {}
"""Handles by context and stream."""


def gemm_ex(session: Session, desc: Desc, kind: int) -> Callable[..., None]:
    """Return a function that calls ``cublasGemmEx``, or its strided batch, in a stream; ``kind``: a ``cublasComputeType_t``.

    C is float32, and A and B are of the descriptor's types: cuBLAS takes two of one type.
    """
    found: Any = library()
    if not desc.is_vector:
        g = desc
    else:  # x is a column whose rows are incx apart; negative increments never get here
        g = GemmDesc(desc.length, 1, desc.depth, trans_a=desc.trans, lda=desc.lda, ldb=desc.incx, ldc=desc.incy)
    # column-major: Cᵀ = op(B)ᵀ · op(A)ᵀ, so B comes first and M and N change places
    shape = (int(g.trans_b), int(g.trans_a), g.N, g.M, g.K)
    alpha, beta = ctypes.c_float(), ctypes.c_float()
    pa, pb = ctypes.byref(alpha), ctypes.byref(beta)
    type_a, type_b, algorithm = TYPES[g.type_a], TYPES[g.type_b], DEFAULT_ALGORITHM
    size_a, size_b = ELEMENT_BYTES[g.type_a], ELEMENT_BYTES[g.type_b]
    context = int(session._context)  # type: ignore[attr-defined]
    current = session.current  # type: ignore[attr-defined]  # only CUDA's sessions get here
    simple, strided = found.cublasGemmEx, found.cublasGemmStridedBatchedEx

    def run(
        a: int, offset_a: int, b: int, offset_b: int, c: int, offset_c: int, first: float, second: float, queue: Any = None
    ) -> None:
        left, right = (b + size_b * offset_b, type_b, g.ldb), (a + size_a * offset_a, type_a, g.lda)
        out = c + 4 * offset_c, R_32F, g.ldc
        with _lock, current():
            alpha.value, beta.value = first, second
            stream = int(session.queue if queue is None else queue)
            if (context, stream) not in _handles:
                _handles[context, stream] = create_handle(stream)
            handle = _handles[context, stream]
            if g.batch == 1:
                status = simple(handle, *shape, pa, *left, *right, pb, *out, kind, algorithm)
            else:
                left, right, out = (*left, g.stride_b), (*right, g.stride_a), (*out, g.stride_c)  # type: ignore[assignment]
                status = strided(handle, *shape, pa, *left, *right, pb, *out, g.batch, kind, algorithm)
        if status:
            check(status, f"cuBLAS for {desc}")

    return run
