"""What an adapter is: how toprung sees the arrays of one library, and makes new ones of their kind."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toprung.errors import BadArray

HOST = "host"


class Home(NamedTuple):
    """Where an array lies.

    Attributes
    ----------
    kind : ``"host"``, or the backend whose memory it is
    number : which device of a backend that counts them
    context : what else tells memory of one kind apart (a pyopencl context)
    """

    kind: str
    number: int = 0
    context: Any = None

    def __str__(self) -> str:
        return (
            "the host" if self.kind == HOST else f"{self.kind}:{self.number}" if self.context is None else f"an {self.kind} context"
        )


@dataclass(slots=True)
class Operand:
    """An array: where its elements lie.

    Attributes
    ----------
    strides : in elements
    address : of the first element, in bytes; in OpenCL from the start of ``memory``
    memory : a pyopencl buffer; None elsewhere
    queue : where work on it is ordered: a stream's handle, a pyopencl queue; None: nowhere in particular
    host : the same elements as a NumPy array, where they lie on the host
    unordered : whether its library does not know of ``queue``, so that the result must be waited for
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


class Adapter:
    """One array library. Override what differs.

    Attributes
    ----------
    name : as a person says it
    order : 0 for a library, more for a protocol: lowest first
    package, type_name : where the type comes from and what it is called
    speaks : attributes that show a protocol
    has_memory_objects : True if ``address`` counts from the start of a memory object (``memory``), not from 0
    """

    name: str
    order = 0
    package = ""
    type_name = ""
    speaks: tuple[str, ...] = ()
    has_memory_objects = False

    def knows(self, kind: type) -> bool:
        """Whether arrays of this type are its."""
        if self.package:
            return any(c.__name__ == self.type_name and c.__module__.partition(".")[0] == self.package for c in kind.__mro__)
        return any(hasattr(kind, name) for name in self.speaks)

    def operand(self, thing: Any, name: str) -> Operand:
        """The array as toprung sees it. Raises BadArray, in which ``name`` is what to call it."""
        raise NotImplementedError

    def empty(self, like: Operand, shape: tuple[int, ...], fortran: bool = False) -> Any:
        """A new array of this kind where ``like`` lies."""
        raise NotImplementedError

    def returned(self, made: Any, like: Operand) -> Any:
        """What the user gets of an array that ``empty`` made and that has been filled."""
        return made

    def scalar(self, thing: Any) -> Any:
        """Return what a product of two vectors returns, given an array without dimensions."""
        return thing

    # the short way, for calls like an earlier one: only asked where ``signature`` is not None

    def signature(self, thing: Any, writable: bool = False) -> Hashable:
        """Return what decides everything but the address, as cheaply as can be; None if nothing may be remembered.

        ``writable``: None if the array cannot be written, too.
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
        """Return a new array of this kind where ``thing`` lies."""
        raise NotImplementedError

    def queue(self, thing: Any, home: Home) -> Any:
        """Return the library's current stream for work on an array at a place; None on the host."""
        return None


def refuse_dtype(name: str, dtype: object, convert: str) -> BadArray:
    """The error for another type than float32."""
    lossy = " (it is never rounded silently)" if str(dtype).removeprefix("torch.") == "float64" else ""
    return BadArray(
        f"{name} is {str(dtype).removeprefix('torch.')}, and toprung multiplies float32{lossy}: convert it with {convert}"
    )
