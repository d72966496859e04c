"""Anything with ``__cuda_array_interface__`` (Numba, PyCUDA, …), and toprung's own array where a result has no other home."""

from __future__ import annotations

from typing import Any

from toprung.arrays.base import Adapter, Home, Operand, refuse_dtype
from toprung.backends import cuda
from toprung.backends.base import Buffer
from toprung.errors import BadArray
from toprung.gemm.lowering import tight

LEGACY = 1
"""Handle of CUDA's legacy default stream, which waits for all ordinary streams and they for it."""


class DeviceArray:
    """A float32 array in CUDA memory that libraries take through ``__cuda_array_interface__``.

    Attributes
    ----------
    shape, strides : strides in bytes
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
    """Arrays that describe themselves, with the stream their data is ready on."""

    name = "__cuda_array_interface__"
    order = 1
    speaks = ("__cuda_array_interface__",)

    def operand(self, thing: Any, name: str) -> Operand:
        """What the array says of itself."""
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
        """An array of our own, ready on the stream of ``like``."""
        return own_array(like, shape, fortran)


def own_array(like: Operand, shape: tuple[int, ...], fortran: bool = False) -> DeviceArray:
    """A new array of ours."""
    from toprung.arrays.sessions import session_at

    strides = tight(shape, fortran)
    nbytes = 4
    for n in shape:
        nbytes *= n
    buffer = session_at(like.home).allocate(nbytes)
    return DeviceArray(buffer, shape, tuple(4 * s for s in strides), like.queue, like.home.number)


adapter = CUDAInterface()
