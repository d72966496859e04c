"""Adapter for CuPy arrays, on CuPy's current stream."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from toprung.arrays.base import Adapter, Home, Operand, refuse_dtype
from toprung.backends.base import KEPT_BYTES


class CuPy(Adapter):
    """Adapter of CuPy arrays with any strides, on CUDA devices."""

    name = "CuPy"
    package = "cupy"
    type_name = "ndarray"

    def operand(self, thing: Any, name: str) -> Operand:
        # the array's memory as an Operand on CuPy's current stream; raise BadArray for another type than float32
        if thing.dtype != "float32":
            raise refuse_dtype(name, thing.dtype, f"{name}.astype(cupy.float32)")
        return self._operand(thing, "float32")

    def widened(self, thing: Any) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(thing.device.id):
            return thing.astype(cupy.float32)

    def half_operand(self, thing: Any, name: str) -> Operand:
        return self._operand(thing, self.half(thing))

    def _operand(self, thing: Any, dtype: str) -> Operand:
        home = Home("cuda", thing.device.id)
        strides = tuple(s // thing.dtype.itemsize for s in thing.strides)
        return Operand(self, thing, thing.shape, strides, home, thing.data.ptr, queue=self.queue(thing, home), dtype=dtype)

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.home.number):
            return cupy.empty(shape, cupy.float32, order="F" if fortran else "C")

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        return thing.dtype, thing.shape, thing.strides, thing.device.id

    def address(self, thing: Any) -> int:
        return int(thing.data.ptr)

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(thing.device.id):
            return cupy.empty(shape, cupy.float32)

    def queue(self, thing: Any, home: Home) -> Any:
        cupy = sys.modules["cupy"]
        return cupy.cuda.get_current_stream(home.number).ptr

    def is_capturing(self) -> bool:
        return bool(sys.modules["cupy"].cuda.get_current_stream().is_capturing())

    def lend(self, thing: Any, nbytes: int) -> tuple[Any, int] | None:
        # memory of CuPy's pool, which has one for each stream; a graph holds addresses for longer than a product takes
        if nbytes <= KEPT_BYTES or self.is_capturing():
            return None
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(thing.device.id):
            made = cupy.cuda.alloc(nbytes)
        return made, made.ptr


adapter = CuPy()
