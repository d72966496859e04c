"""Base class of the adapters: each describes the arrays of one library to toprung and makes new ones of their kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toprung.errors import BadArray

HOST = "host"
HALVES = ("float16", "bfloat16")
"""Types that a factor of ``matmul`` may have beside float32."""


class Home(NamedTuple):
    """Place where an array lies: the host or a device.

    Attributes
    ----------
    kind : ``"host"``, or the name of the backend whose memory it is
    number : number of the device, for a backend that numbers its devices
    context : object that tells memories of one kind apart beside the number (a pyopencl context); None if there is none
    """

    kind: str
    number: int = 0
    context: Any = None

    def __str__(self) -> str:
        return (
            "the host" if self.kind == HOST else f"{self.kind}:{self.number}" if self.context is None else f"an {self.kind} context"
        )


class Operand(NamedTuple):
    """Description of an array: where its elements lie, and in which queue work on it is ordered.

    Attributes
    ----------
    adapter : adapter of the library that the array belongs to
    thing : the array itself, which keeps its memory alive
    shape : number of elements along each dimension
    strides : number of elements from one element to the next along each dimension
    home : place where the array lies
    address : address of the first element in bytes; in OpenCL, bytes from the start of ``memory``
    memory : a pyopencl buffer; None elsewhere
    queue : queue that orders work on the array: a stream's handle, a pyopencl queue; None if there is none in particular
    writable : True if the elements may be written
    host : the same elements as a NumPy array, if they lie on the host; None elsewhere
    unordered : True if the array's library does not know of ``queue``, so that a call must wait for the result
    dtype : type of the elements: ``"float32"``, or of a factor one of ``HALVES``
    """

    adapter: Adapter
    thing: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    home: Home
    address: int
    memory: Any = None
    queue: Any = None
    writable: bool = True
    host: NDArray[np.float32] | None = None
    unordered: bool = False
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 2 if self.dtype in HALVES else 4


class Adapter:
    """Base class of an adapter for one array library; a subclass overrides what differs.

    Attributes
    ----------
    name : name of the library, for messages
    order : place in the search, lowest first: 0 for a library, more for a protocol
    package, type_name : package and name of the array type
    speaks : names of attributes that show a protocol
    has_memory_objects : True if ``address`` counts from the start of a memory object (``memory``), not from 0
    """

    name: str
    order = 0
    package = ""
    type_name = ""
    speaks: tuple[str, ...] = ()
    has_memory_objects = False

    def knows(self, kind: type) -> bool:
        """Return True if arrays of this type belong to this library or protocol."""
        if self.package:
            return any(c.__name__ == self.type_name and c.__module__.partition(".")[0] == self.package for c in kind.__mro__)
        return any(hasattr(kind, name) for name in self.speaks)

    def operand(self, thing: Any, name: str) -> Operand:
        """Return the array as an Operand, or raise BadArray, whose message calls it ``name``."""
        raise NotImplementedError

    def half(self, thing: Any) -> str:
        """Return the type of an array's elements if it is one of ``HALVES`` that ``widened`` takes; else an empty text."""
        if type(self).widened is Adapter.widened:
            return ""
        kind = str(getattr(thing, "dtype", "")).removeprefix("torch.")
        return kind if kind in HALVES else ""

    def widened(self, thing: Any) -> Any:
        """Return an array of halves as a float32 array of the same library in the same place."""
        raise NotImplementedError

    def half_operand(self, thing: Any, name: str) -> Operand:
        """Return an array of halves as an Operand: as it lies if the library has a signature for it, else widened."""
        return self.operand(self.widened(thing), name)

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        """Return a new float32 array of this kind and of this shape where ``like`` lies; column-major if ``fortran`` is True."""
        raise NotImplementedError

    def returned(self, made: Any, like: Operand) -> Any:
        """Return the result as the caller gets it, given an array that ``empty`` made and that has been filled."""
        return made

    def scalar(self, thing: Any) -> Any:
        """Return the result of a product of two vectors, given as an array without dimensions."""
        return thing

    def is_watching(self) -> bool:
        """Return True while the library must see whatever happens to any array."""
        return False

    def is_recorded(self, thing: Any) -> bool:
        """Return True if the library must see what happens to an array: to record a gradient, to transform or to trace it."""
        return False

    def detached(self, thing: Any) -> Any:
        """Return the same elements as an array that nothing is recorded of."""
        return thing

    def watch(self, thing: Any) -> Callable[[], bool] | None:
        """Return a function that returns True from when an array is written to; None if the library cannot tell."""
        return None

    # the short way, for calls like an earlier one: only asked where ``signature`` is not None

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        """Return a key of everything but the address that decides a call, cheaply; None if the call must not be remembered.

        ``writable``: True to return None also for an array that cannot be written.
        """
        return None

    def address(self, thing: Any) -> int:
        """Return the address of the first element, in bytes."""
        raise NotImplementedError

    def memory(self, thing: Any) -> Any:
        """Return the memory object that ``address`` counts from; None if it counts from 0."""
        return None

    def on_host(self, thing: Any) -> NDArray[np.float32]:
        """Return an array on the host as a NumPy array, not copied."""
        raise NotImplementedError

    def fresh(self, thing: Any, shape: tuple[int, ...]) -> Any:
        """Return a new float32 array of this kind and of this shape where ``thing`` lies."""
        raise NotImplementedError

    def queue(self, thing: Any, home: Home) -> Any:
        """Return the library's current stream for work on an array at a place; None on the host."""
        return None

    def exchange(self) -> tuple[Iterable[type], tuple[Any, ...]] | None:
        """Return what ``know`` in ``native/entry.cpp`` takes: types, and arguments; None if arrays have no exchange in C."""
        return None

    def maker(self, like: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Callable[[], Any]:
        """Return a function that returns a new float32 array where ``like`` lies; asked where there is an ``exchange``.

        ``strides``: in elements.

        The exchange allocates as well, but the library does not know such memory for its own: ``Tensor.record_stream`` ignores it.
        """
        raise NotImplementedError

    def is_capturing(self) -> bool:
        """Return True if the library's current stream is being captured into a graph."""
        return False

    def lend(self, thing: Any, nbytes: int) -> tuple[Any, Any] | None:
        """Return new scratch memory where ``thing`` lies, from an allocator that orders its reuse by the current stream.

        It comes as an object that owns it, to be dropped when the work is in the queue, and its handle, an address being on 256
        bytes. None: the session's own scratch memory serves, which costs the host less but is kept.
        """
        return None


def refuse_dtype(name: str, dtype: object, convert: str) -> BadArray:
    """Return the error for an array of another type than float32; ``convert`` is the code that converts it."""
    kind = str(dtype).removeprefix("torch.")
    if kind.startswith("complex"):
        return BadArray(f"{name} is {kind}, and toprung multiplies real float32: multiply its real and imaginary parts one by one")
    if getattr(dtype, "names", None):
        return BadArray(f"{name} has fields, {', '.join(dtype.names)}: pass one of them")  # type: ignore[attr-defined]
    lossy = " (it is never rounded silently)" if kind == "float64" else ""
    return BadArray(f"{name} is {kind}, and toprung multiplies float32{lossy}: convert it with {convert}")
