"""cuBLAS, called through ctypes: whichever package or toolkit brought the library, our memory, our stream, no copies."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from typing import Any

import numpy as np

from toprung.backends.base import Buffer
from toprung.competitor import OnDevice, Prepared, PreparedOnDevice, Promise
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.peers import Peer
from toprung.peers._twin import no_cuda, placed_through, stream

# cudaDataType_t, cublasComputeType_t and cublasGemmAlgo_t
R_32F, R_16F = 0, 2
COMPUTE_32F, COMPUTE_TF32 = 68, 77
DEFAULT_ALGORITHM = -1

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_OPERAND: list[Any] = [
    _POINTER,
    _INT,
    _INT,
    _LONG,
]  # address, type, leading dimension, elements from one matrix of the batch to the next


@functools.cache
def _library() -> Any:
    """The library, or None where none is installed."""
    if not importlib.util.find_spec("cuda") or not importlib.util.find_spec("cuda.pathfinder"):
        return None
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (DynamicLibNotFoundError, OSError, RuntimeError):
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
    """The library's, empty where none is installed."""
    library = _library()
    if library is None:
        return ""
    parts = [_INT() for _ in range(3)]
    for kind, part in enumerate(parts):  # libraryPropertyType: major, minor, patch level
        _check(library.cublasGetProperty(kind, ctypes.byref(part)), "cublasGetProperty")
    return "cublas " + ".".join(str(part.value) for part in parts)


def _check(status: int, what: str) -> None:
    if status:
        raise LaunchError(f"{what}: {_library().cublasGetStatusString(status).decode()}")


@functools.cache
def _handle(stream: int) -> ctypes.c_void_p:
    """A cuBLAS handle for a stream of the context that is current; kept, because making one takes long."""
    handle = ctypes.c_void_p()
    _check(_library().cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    _check(_library().cublasSetStream_v2(handle, stream), "cublasSetStream")
    return handle


class CuBLASPeer(Peer):
    """``cublasGemmEx`` with one type of operands and one way to compute."""

    kinds = ("gpu",)

    def __init__(self, name: str, title: str, promise: Promise, compute: int = COMPUTE_32F, operands: int = R_32F) -> None:
        self.name, self.title, self.promise, self._compute, self._type = name, title, promise, compute, operands

    def absent(self, device: Device) -> str:
        """Whether there is a GPU for it, and a library."""
        if reason := no_cuda(device):
            return reason
        return "" if _library() else "no cuBLAS library is installed; pip install nvidia-cublas (PyTorch brings it, too)"

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        """In fp32, of an NVIDIA GPU."""
        return self.promise.precision == "fp32" and routine == "gemm" and "nvidia" in device.vendor.lower() and device.kind == "gpu"

    def prepare(self, placed: OnDevice) -> Prepared:
        """Bind the session's memory; narrower operands are made once, beforehand."""
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
                    parts[m.name] = session.allocate(half.nbytes)
                    session.upload(parts[m.name], half)
        a, b, c = problem.matrices
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        # column-major: Cᵀ = op(B)ᵀ · op(A)ᵀ, so B comes first and M and N change places
        shape = (int(problem.trans[1] == "T"), int(problem.trans[0] == "T"), problem.N, problem.M, problem.K)
        operands: list[tuple[int, ...]] = [
            (parts[m.name].pointer, R_32F if m.output else self._type, m.ld, m.rows // problem.batch * m.ld)  # type: ignore[attr-defined]
            for m in (b, a, c)
        ]
        handle, scalars = _handle(stream(session)), (ctypes.byref(alpha), ctypes.byref(beta))
        if problem.batch == 1:
            call, name = _library().cublasGemmEx, "cublasGemmEx"
            operands = [o[:3] for o in operands]
            last: tuple[int, ...] = (self._compute, DEFAULT_ALGORITHM)
        else:
            call, name = _library().cublasGemmStridedBatchedEx, "cublasGemmStridedBatchedEx"
            last = (problem.batch, self._compute, DEFAULT_ALGORITHM)
        left, right, out = operands
        arguments = (handle, *shape, scalars[0], *left, *right, scalars[1], *out, *last)

        def launch(kept: object = (parts, alpha, beta)) -> None:
            if status := call(*arguments):
                _check(status, f"{name} for {problem}")

        return PreparedOnDevice(placed, launch)
