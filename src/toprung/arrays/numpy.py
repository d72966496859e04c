"""NumPy arrays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.arrays.base import HOST, Adapter, Home, Operand, refuse_dtype
from toprung.errors import BadArray

HERE = Home(HOST)

FLOAT32 = np.dtype(np.float32)
"""NumPy's one object for native float32: of another byte order or with metadata a dtype is another object."""


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

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        """Return shape and strides of a native float32 array; None for everything else, subclasses too."""
        if type(thing) is not np.ndarray or thing.dtype is not FLOAT32 or (writable and not thing.flags.writeable):
            return None
        return thing.shape, thing.strides

    def address(self, thing: Any) -> int:
        """Return the address of the first element."""
        return thing.__array_interface__["data"][0]  # type: ignore[no-any-return]

    def on_host(self, thing: Any) -> NDArray[np.float32]:
        """Return the array itself."""
        return thing  # type: ignore[no-any-return]

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        """Return a new array."""
        return np.empty(shape, FLOAT32)


def host_operand(adapter: Adapter, thing: Any, array: Any) -> Operand:
    """An operand of a NumPy array or a view of somebody else's host memory."""
    if any(s % 4 for s, n in zip(array.strides, array.shape, strict=True) if n > 1) or not array.flags.aligned:
        array = np.array(array)  # odd bytes apart, as in a structured array: no kernel reads that
        array.flags.writeable = False
    strides = tuple(s // 4 for s in array.strides)
    address = array.__array_interface__["data"][0]
    return Operand(adapter, thing, array.shape, strides, HERE, address, writable=array.flags.writeable, host=array)


class _At:
    """An object with the array interface of memory that somebody else owns."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, writable: bool) -> None:
        self.owner = owner
        self.__array_interface__: dict[str, Any] = {
            "shape": shape, "strides": tuple(4 * s for s in strides), "typestr": "<f4", "data": (address, not writable),
            "version": 3,
        }  # fmt: skip


def array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, writable: bool) -> NDArray[np.float32]:
    """Return a NumPy array over memory that ``owner`` keeps; strides in elements."""
    return np.asarray(_At(address, shape, strides, owner, writable))


adapter = NumPy()
