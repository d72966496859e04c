"""NumPy arrays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from toprung.arrays.base import HOST, Adapter, Home, Operand, refuse_dtype
from toprung.errors import BadArray

HERE = Home(HOST)


class NumPy(Adapter):
    """Any strides, on the host."""

    name = "NumPy"

    def knows(self, kind: type) -> bool:
        """Arrays and array scalars."""
        return issubclass(kind, (np.ndarray, np.generic))

    def operand(self, thing: Any, name: str) -> Operand:
        """The array itself."""
        if isinstance(thing, np.ma.MaskedArray):
            raise BadArray(f"{name} is a masked array, whose mask would be lost: pass {name}.filled(0) or {name}.data")
        array = np.asarray(thing)
        if array.dtype != np.float32:
            raise refuse_dtype(name, array.dtype, f"{name}.astype(numpy.float32)")
        if not array.dtype.isnative:
            raise refuse_dtype(name, f"byte-swapped {array.dtype}", f"{name}.astype(numpy.float32)")
        return host_operand(self, thing, array)

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        """A new array."""
        return np.empty(shape, np.float32, order="F" if fortran else "C")

    def scalar(self, thing: Any) -> Any:
        """A NumPy scalar, as NumPy returns it."""
        return thing[()]

    def signature(self, thing: Any) -> Hashable:
        """Type, shape and strides."""
        if type(thing) is not np.ndarray:
            return None
        return thing.dtype.char, thing.shape, thing.strides

    def address(self, thing: Any) -> int:
        """Of the first element."""
        return int(thing.__array_interface__["data"][0])


def host_operand(adapter: Adapter, thing: Any, array: Any) -> Operand:
    """An operand of a NumPy array or a view of somebody else's host memory."""
    if any(s % 4 for s, n in zip(array.strides, array.shape, strict=True) if n > 1) or not array.flags.aligned:
        array = np.array(array)  # odd bytes apart, as in a structured array: no kernel reads that
        array.flags.writeable = False
    strides = tuple(s // 4 for s in array.strides)
    address = array.__array_interface__["data"][0]
    return Operand(adapter, thing, array.shape, strides, HERE, address, writable=array.flags.writeable, host=array)


adapter = NumPy()
