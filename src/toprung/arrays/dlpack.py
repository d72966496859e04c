"""Adapter for arrays with ``__dlpack__``: JAX and other libraries of the Python array API."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from toprung.arrays import cuda_interface
from toprung.arrays.base import Adapter, Home, Operand, refuse_dtype
from toprung.arrays.cuda_interface import LEGACY, DeviceArray, own_array
from toprung.arrays.numpy import host_operand
from toprung.errors import BadArray
from toprung.gemm.layout import tight

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""Values of DLPack's ``DLDeviceType``."""
FLOAT = 2
"""Value of ``kDLFloat`` in DLPack's ``DLDataTypeCode``."""
READ_ONLY = 1
"""Flag of a versioned tensor that must not be written."""


class _Tensor(ctypes.Structure):
    """DLPack's ``DLTensor``, with the fields of its ``DLDevice`` and ``DLDataType``."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    """DLPack's ``DLManagedTensor``."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """DLPack's ``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


def opened(capsule: Any) -> tuple[_Tensor, bool]:
    """Return the tensor in a capsule, and True if it may be written; the capsule still owns the tensor and frees it."""
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_GetPointer.argtypes, api.PyCapsule_GetPointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    if api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        at = api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        versioned = _Versioned.from_address(at)
        return versioned.tensor, not versioned.flags & READ_ONLY
    return _Managed.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor")).tensor, True


class DLPack(Adapter):
    """Adapter of arrays that hand over their memory as a DLPack capsule."""

    name = "DLPack"
    order = 2
    speaks = ("__dlpack__",)

    def operand(self, thing: Any, name: str) -> Operand:
        # the array as its capsule describes it; raise BadArray for a device that toprung does not reach or another type
        if isinstance(thing, DeviceArray):  # what ``empty`` made where the library cannot
            return cuda_interface.adapter.operand(thing, name)
        kind, number = (int(x) for x in thing.__dlpack_device__())
        if kind in (CPU, CUDA_HOST):
            try:
                array = np.from_dlpack(thing)
            except (BufferError, RuntimeError) as error:
                raise BadArray(f"{name} ({type(thing).__name__}) does not hand its memory over: {error}") from None
            if array.dtype != np.float32:
                raise refuse_dtype(name, array.dtype, "its library's astype(float32)")
            return host_operand(self, thing, array)
        if kind not in (CUDA, CUDA_MANAGED):
            raise BadArray(
                f"{name} is on a device of DLPack's type {kind}, which toprung does not reach: move it to the host or to CUDA"
            )
        try:
            capsule = thing.__dlpack__(stream=LEGACY, max_version=(1, 0))
        except TypeError:  # libraries older than DLPack 1.0
            capsule = thing.__dlpack__(stream=LEGACY)
        tensor, writable = opened(capsule)
        if (tensor.code, tensor.bits, tensor.lanes) != (FLOAT, 32, 1):
            raise refuse_dtype(name, f"of DLPack's type {tensor.code} with {tensor.bits} bits", "its library's astype(float32)")
        shape = tuple(tensor.shape[: tensor.ndim])
        strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else tight(shape)
        address = (tensor.data or 0) + tensor.byte_offset
        home = Home("cuda", number)
        return Operand(
            self, (thing, capsule), shape, strides, home, address, queue=LEGACY, writable=writable, unordered=True
        )  # fmt: skip

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        # a new array from the array's own library if it follows the array API; else NumPy's, or a DeviceArray on a GPU
        thing = like.thing[0] if isinstance(like.thing, tuple) else like.thing
        space = getattr(thing, "__array_namespace__", None)
        if like.host is not None:
            made = np.empty(shape, np.float32, order="F" if fortran else "C")
            return made
        if space is None or fortran:
            return own_array(like, shape, fortran)
        return space().empty(shape, dtype=space().float32, device=thing.device)

    def returned(self, made: Any, like: Operand) -> Any:
        thing = like.thing[0] if isinstance(like.thing, tuple) else like.thing
        space = getattr(thing, "__array_namespace__", None)
        return space().from_dlpack(made) if space is not None and isinstance(made, np.ndarray) else made


adapter = DLPack()
