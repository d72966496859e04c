"""Adapter for NumPy arrays, and views of host memory that other libraries own."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.arrays.base import HOST, Adapter, Home, Operand, refuse_dtype
from toprung.errors import BadArray

HERE = Home(HOST)

FLOAT32 = np.dtype(np.float32)
"""NumPy's only dtype object for native float32: another byte order or metadata makes another object."""


class NumPy(Adapter):
    """Adapter of NumPy arrays with any strides, on the host."""

    name = "NumPy"

    def knows(self, kind: type) -> bool:
        return issubclass(kind, (np.ndarray, np.generic))

    def operand(self, thing: Any, name: str) -> Operand:
        # the array as an Operand; raise BadArray for a masked array or another type than native float32
        masked = sys.modules.get("numpy.ma")  # whoever has a masked array has loaded it; nobody else should
        if masked is not None and isinstance(thing, masked.MaskedArray):
            raise BadArray(f"{name} is a masked array, whose mask would be lost: pass {name}.filled(0) or {name}.data")
        array = np.asarray(thing)
        if array.dtype != np.float32:
            raise refuse_dtype(name, array.dtype, f"{name}.astype(numpy.float32)")
        if not array.dtype.isnative:
            raise refuse_dtype(name, f"byte-swapped {array.dtype}", f"{name}.astype(numpy.float32)")
        return host_operand(self, thing, array)

    def half(self, thing: Any) -> str:
        # the type of halves; a masked array is refused as any is. To name a type NumPy imports, which Python's end refuses
        return "" if thing.dtype is FLOAT32 or hasattr(thing, "mask") else super().half(thing)

    def widened(self, thing: Any) -> Any:
        return np.asarray(thing).astype(np.float32)

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        # a new NumPy array; column-major if `fortran` is True
        return np.empty(shape, np.float32, order="F" if fortran else "C")

    def scalar(self, thing: Any) -> Any:
        return thing[()]

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        # shape and strides in bytes of a native float32 array; None for everything else, subclasses too
        if type(thing) is not np.ndarray or thing.dtype is not FLOAT32 or (writable and not thing.flags.writeable):
            return None
        return thing.shape, thing.strides

    def address(self, thing: Any) -> int:
        return thing.__array_interface__["data"][0]  # type: ignore[no-any-return]

    def on_host(self, thing: Any) -> NDArray[np.float32]:
        return thing  # type: ignore[no-any-return]

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, FLOAT32)


def host_operand(adapter: Adapter, thing: Any, array: Any) -> Operand:
    """Return the operand of a NumPy array or of a view of host memory; copied if strides or address are no multiple of 4 bytes."""
    if any(s % 4 for s, n in zip(array.strides, array.shape, strict=True) if n > 1) or not array.flags.aligned:
        array = np.array(array)  # odd bytes apart, as in a structured array: no kernel reads that
        array.flags.writeable = False
    strides = tuple(s // 4 for s in array.strides)
    address = array.__array_interface__["data"][0]
    return Operand(adapter, thing, array.shape, strides, HERE, address, writable=array.flags.writeable, host=array)


adapter = NumPy()
