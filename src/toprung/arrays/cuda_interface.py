"""Adapter for ``__cuda_array_interface__`` (Numba, PyCUDA, …), and toprung's own array for results that no library allocates."""

from __future__ import annotations

from typing import Any

from toprung.arrays.base import Adapter, Home, Operand, refuse_dtype
from toprung.backends.base import Buffer
from toprung.errors import BadArray
from toprung.gemm.layout import tight

LEGACY = 1
"""Handle of CUDA's legacy default stream: it waits for all blocking streams of the device, and they wait for it."""


class DeviceArray:
    """A float32 array in CUDA memory that other libraries accept through ``__cuda_array_interface__``.

    Attributes
    ----------
    shape : number of elements along each dimension
    strides : number of bytes from one element to the next along each dimension
    number : number of the CUDA device
    """

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], stream: int, number: int) -> None:
        self.shape, self.strides, self.number = shape, strides, number
        self._buffer, self._stream = buffer, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "strides": self.strides, "typestr": "<f4", "data": (self._buffer.handle, False), "version": 3,
            "stream": self._stream,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"DeviceArray({'×'.join(map(str, self.shape))} float32 on cuda:{self.number})"


class CUDAInterface(Adapter):
    """Adapter of arrays that describe themselves, along with the stream on which their data is ready."""

    name = "__cuda_array_interface__"
    order = 1
    speaks = ("__cuda_array_interface__",)

    def operand(self, thing: Any, name: str) -> Operand:
        # the array as it describes itself; raise BadArray for a mask or another type than float32
        from toprung.backends import cuda  # loaded for whoever has such an array

        facts = thing.__cuda_array_interface__
        if facts["typestr"] != "<f4":
            raise refuse_dtype(name, facts["typestr"], "its library's astype(float32)")
        if facts.get("mask") is not None:
            raise BadArray(f"{name} has a mask, which would be lost: fill it first")
        address, read_only = facts["data"]
        shape = tuple(facts["shape"])
        given = facts.get("strides")
        strides = tight(shape) if given is None else tuple(s // 4 for s in given)
        home = Home("cuda", cuda.device_of(address) if address else 0)
        stream = facts.get("stream")
        return Operand(
            self, thing, shape, strides, home, address, queue=stream or LEGACY, writable=not read_only, unordered=not stream
        )

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        return own_array(like, shape, fortran)


def own_array(like: Operand, shape: tuple[int, ...], fortran: bool = False) -> DeviceArray:
    """Return a new DeviceArray of this shape on the device and the stream of ``like``; column-major if ``fortran`` is True."""
    from toprung.arrays.sessions import session_at

    strides = tight(shape, fortran)
    nbytes = 4
    for n in shape:
        nbytes *= n
    buffer = session_at(like.home).allocate(nbytes)
    return DeviceArray(buffer, shape, tuple(4 * s for s in strides), like.queue, like.home.number)


adapter = CUDAInterface()
