"""Adapter for pyopencl.array: arrays in a context of the user's, on the queue that the array carries."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from toprung.arrays.base import Adapter, Home, Operand, refuse_dtype
from toprung.arrays.numpy import FLOAT32
from toprung.backends.base import KEPT_BYTES
from toprung.errors import BadArray


class PyOpenCL(Adapter):
    """Adapter of pyopencl arrays with any strides; a result has the first operand's queue."""

    name = "pyopencl"
    package = "pyopencl"
    type_name = "Array"
    has_memory_objects = True

    def operand(self, thing: Any, name: str) -> Operand:
        # the array's buffer as an Operand; raise BadArray without queue or buffer, or for another type than float32
        if thing.dtype != "float32":
            raise refuse_dtype(name, thing.dtype, f"{name}.astype(numpy.float32)")
        if thing.queue is None:
            raise BadArray(f"{name} has no queue: give it one with {name}.with_queue(queue)")
        memory = thing.base_data
        if thing.size and not hasattr(memory, "int_ptr"):
            raise BadArray(f"{name} lies in shared virtual memory: copy it into a buffer with pyopencl.array.to_device")
        strides = tuple(s // 4 for s in thing.strides)
        home = Home("opencl", context=thing.queue.context)
        return Operand(self, thing, thing.shape, strides, home, thing.offset, memory, thing.queue)

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        # a new array on the queue of `like`, from its allocator; column-major if `fortran` is True
        array = sys.modules["pyopencl.array"]
        thing = like.thing
        return array.Array(like.queue, shape, "float32", order="F" if fortran else "C", allocator=getattr(thing, "allocator", None))

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        # shape, strides in bytes and queue of a float32 array; None without a queue or in shared virtual memory
        queue = thing.queue
        if queue is None or thing.dtype is not FLOAT32 or not hasattr(thing.base_data, "int_ptr"):
            return None
        return thing.shape, thing.strides, queue.int_ptr

    def address(self, thing: Any) -> int:
        return int(thing.offset)

    def memory(self, thing: Any) -> Any:
        return thing.base_data

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        return sys.modules["pyopencl.array"].Array(thing.queue, shape, FLOAT32, allocator=getattr(thing, "allocator", None))

    def queue(self, thing: Any, home: Home) -> Any:
        return thing.queue

    def lend(self, thing: Any, nbytes: int) -> tuple[Any, Any] | None:
        # a buffer that the runtime frees when the kernels that were given it have ended
        if nbytes <= KEPT_BYTES:
            return None
        cl = sys.modules["pyopencl"]
        made = cl.Buffer(thing.queue.context, cl.mem_flags.READ_WRITE, nbytes)
        return made, made


adapter = PyOpenCL()
