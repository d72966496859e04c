"""Operands of a call, checked and arranged as matrices in a batch before anything is launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toprung import arrays
from toprung.arrays.base import HOST, Operand, refuse_dtype
from toprung.arrays.numpy import adapter as numpy_adapter
from toprung.arrays.sessions import chosen, session_at
from toprung.blas.packed import PackedOperand
from toprung.device import Device
from toprung.dispatch import known_precision
from toprung.errors import BadArgument, BadArray, BadShape, MixedPlaces, Overlap
from toprung.gemm import overlap
from toprung.gemm.layout import Layout, aligned
from toprung.gemm.overlap import array_at


class How(NamedTuple):
    """Options of a call beside its operands.

    Attributes
    ----------
    operation, names : name of the routine, and its names for A, B and C; for messages and the receipt
    precision : name of the precision that was asked for
    own : True to run only toprung's kernels
    device : device that was asked for; None for any
    """

    operation: str
    precision: str = "auto"
    own: bool = False
    device: Device | str | None = None
    names: tuple[str, str, str] = ("a", "b", "out")


class View(NamedTuple):
    """Elements of an operand under another shape and strides: a transpose, a broadcast, every second element.

    Attributes
    ----------
    operand : operand that the elements belong to
    shape, strides : batch dimensions, rows, columns; strides in elements
    offset : number of elements from the operand's first element to the view's
    """

    operand: Operand
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def address(self) -> int:
        """Address of the first element, in bytes."""
        return self.operand.address + self.operand.size * self.offset

    @property
    def layout(self) -> Layout:
        """Shape, strides and alignment, as kernel selection sees them."""
        return Layout(self.shape, self.strides, aligned(self.address), self.operand.dtype)

    @property
    def first(self) -> tuple[Any, int]:
        """Handle of the memory in its runtime, and index of the first element in it."""
        if self.operand.memory is None:
            return self.address, 0
        return self.operand.memory, self.address // self.operand.size

    @property
    def on_host(self) -> NDArray[np.float32]:
        """Elements as a NumPy array, not copied."""
        operand = self.operand
        assert operand.host is not None
        if (self.shape, self.strides, self.offset) == (operand.shape, operand.strides, 0):
            return operand.host
        if 0 in self.shape:
            return np.empty(self.shape, np.float32)
        return array_at(self.address, self.shape, self.strides, operand.host, operand.writable)


class Arranged(NamedTuple):
    """Operands of a call that fit together.

    Attributes
    ----------
    first, second, result : operands as they were given; the result is a new array where none was
    made : array that the result is
    a, b, c : all three as matrices with the same batch dimensions
    shape : shape of the result
    """

    first: Operand
    second: Operand
    result: Operand
    made: Any
    a: View
    b: View
    c: View
    shape: tuple[int, ...]


def taken(a: Any, b: Any, out: Any) -> tuple[Operand, Operand, Operand | None]:
    """Return the operands of a product as toprung sees them; None for an ``out`` that is not given."""
    if isinstance(a, PackedOperand):
        raise BadArray("a is prepacked, and only b can be: pass the array itself as a, or exchange the operands and transpose both")
    first, second = factor(a, "a"), factor(b, "b")
    return first, second, output(out)


def arranged(first: Operand, second: Operand, target: Operand | None, out: Any, how: How) -> Arranged:
    """Return the operands of a product as matrices in a batch, and the result, made if ``target`` is None."""
    known_precision(how.precision)
    if not isinstance(how.own, (bool, np.bool_)):
        raise BadArgument(f"own is True or False, not {how.own!r}")
    together([first, second, *([target] if target else [])], how)
    left, right, shape = shapes(first, second)
    row, column = len(first.shape) == 1, len(second.shape) == 1
    batch = shape[: len(shape) - (not row) - (not column)]
    if target is None:
        made = first.adapter.empty(first, shape)
        target = first.adapter.operand(made, "the result")
    else:
        made = out[0] if isinstance(out, tuple) else out
        batch = accepted(target, shape, batch, (first, second), how)
    a, b = spread(left, batch), spread(right, batch)
    return Arranged(first, second, target, made, a, b, _with_vectors(target, batch, row, column), shape)


def finished(given: Arranged, out: Any) -> Any:
    """Return what the caller gets when the result is computed: ``out``, or a new array of the first operand's kind."""
    if out is not None:
        return given.made
    made = given.first.adapter.returned(given.made, given.first)
    return made if given.shape else given.first.adapter.scalar(made)


def together(views: Sequence[Operand], how: How) -> None:
    """Raise MixedPlaces for operands on different devices, or on another one than ``device=`` says."""
    first = views[0]
    for other, name in zip(views[1:], how.names[1:], strict=False):
        if other.home != first.home:
            raise MixedPlaces(f"{how.names[0]} is on {first.home} and {name} on {other.home}: move one to where the other is")
    if how.device is not None and first.home.kind != HOST:
        wanted = chosen(how.device)
        here = session_at(first.home, first.queue).device
        if wanted.id != here.id:
            raise MixedPlaces(
                f"the arrays are on {here}, and device={wanted.id!r} was asked for: move them there, or leave device out"
            )


def factor(thing: Any, name: str) -> Operand:
    """Return an operand of float32 or of halves; lists and numbers are converted to float32."""
    library = arrays.adapter_of(thing)
    return library.half_operand(thing, name) if library is not None and library.half(thing) else strict(thing, name)


def strict(thing: Any, name: str) -> Operand:
    """Return a float32 operand; lists and numbers are converted to one."""
    found = arrays.operand(thing, name)
    if found is not None:
        return found
    return numpy_adapter.operand(converted(thing, name), name)


def converted(thing: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the NumPy array of a list, a number, or an object that converts itself; raise BadArray for anything else."""
    foreign = any(hasattr(thing, protocol) for protocol in ("__array__", "__array_interface__", "__array_struct__"))
    if thing is None or isinstance(thing, (str, bytes, dict, set)):
        raise BadArray(f"{name} is {type(thing).__name__}, not an array: pass a float32 array or nested lists of numbers")
    if not foreign and _carries_float64(thing):
        raise refuse_dtype(name, "float64", f"numpy.asarray({name}, numpy.float32)")
    try:
        if foreign or isinstance(thing, memoryview):
            return np.asarray(thing)
        found = np.asarray(thing)
        if found.dtype.kind not in "biuf" and found.size:
            raise TypeError(f"its elements are {found.dtype}")
        with np.errstate(over="ignore"):
            return found.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise BadArray(f"{name} ({type(thing).__name__}) does not become a float32 array: {error}") from None


def _carries_float64(thing: Any) -> bool:
    """Return True for a buffer of float64, and for a list in which one or an array of float64 is; numbers carry no type."""
    if isinstance(thing, (list, tuple)):
        return not set(map(type, thing)) <= {int, float, bool} and any(map(_carries_float64, thing))
    if isinstance(thing, np.generic) or hasattr(thing, "dtype"):
        return not isinstance(thing, np.generic) and str(thing.dtype).endswith("float64")
    try:
        return memoryview(thing).format.endswith("d")
    except TypeError:
        return False


def output(out: Any) -> Operand | None:
    """Return the operand for ``out=``, which must be writable; None if there is none."""
    if isinstance(out, tuple):
        if len(out) != 1:
            raise BadArgument(f"out is one array or a tuple of one, not of {len(out)}")
        (out,) = out
    if out is None:
        return None
    if arrays.adapter_of(out) is None or isinstance(out, np.generic):
        raise BadArray(f"out must be a float32 array that can be written, not {type(out).__name__}")
    if isinstance(out, np.ndarray) and out.dtype != np.float32:
        raise BadArray(
            f"Cannot cast ufunc 'matmul' output from dtype('float32') to dtype('{out.dtype}'): pass a float32 array as out"
        )  # fmt: skip
    found = arrays.operand(out, "out")
    assert found is not None
    writable(found, "out")
    return found


def writable(target: Operand, name: str) -> None:
    """Raise BadShape for an output that cannot be written."""
    if not target.writable or (target.host is not None and not target.host.flags.writeable):
        raise BadShape(f"{name} is read-only (or its elements are not aligned to 4 bytes): pass an array that can be written")


def shapes(first: Operand, second: Operand) -> tuple[View, View, tuple[int, ...]]:
    """Return both operands as matrices, vectors as a row and a column, and the result's shape by numpy.matmul's rules."""
    for operand, name in ((first, "a"), (second, "b")):
        if not operand.shape:
            raise BadShape(f"{name} has no dimensions; matmul needs vectors, matrices or batches: multiply by a number with *")
    a, b = first.shape, second.shape
    left = View(first, (1, *a), (0, *first.strides)) if len(a) == 1 else View(first, a, first.strides)
    right = View(second, (*b, 1), (*second.strides, 0)) if len(b) == 1 else View(second, b, second.strides)
    if left.shape[-1] != right.shape[-2]:
        raise BadShape(
            f"a is {sizes(a)} and b is {sizes(b)}: a's last dimension ({left.shape[-1]}) must be as long as "
            f"b's {'only' if len(b) == 1 else 'last but one'} ({right.shape[-2]})"
        )
    one, other = left.shape[:-2], right.shape[:-2]
    try:  # NumPy's function takes longer than all other checks
        batch = one if one == other else np.broadcast_shapes(one, other)
    except ValueError:
        raise BadShape(f"a is {sizes(a)} and b is {sizes(b)}: their batches {one} and {other} do not broadcast") from None
    return left, right, (*batch, *left.shape[-2:-1][: len(a) > 1], *right.shape[-1:][: len(b) > 1])


def sizes(shape: tuple[int, ...]) -> str:
    """Return a shape as readable text."""
    return "×".join(map(str, shape)) or "a number"


def accepted(
    result: Operand, shape: tuple[int, ...], batch: tuple[int, ...], inputs: tuple[Operand, ...], how: How, name: str = "out"
) -> tuple[int, ...]:  # fmt: skip
    """Return the batch dimensions of an output; raise BadShape or Overlap if it does not fit.

    A larger batch than the result's is filled by repetition, as NumPy does; an output must overlap nothing.
    """
    tail = shape[len(batch) :]
    given = result.shape[: len(result.shape) - len(tail)]
    fits = len(result.shape) >= len(tail) and result.shape[len(given) :] == tail
    if fits:
        try:
            fits = np.broadcast_shapes(given, batch) == given
        except ValueError:
            fits = False
    if not fits:
        raise BadShape(f"{name} is {sizes(result.shape)}, non-broadcastable with the result, which is {sizes(shape)}")
    apart(result, inputs, how, name)
    return given


def apart(result: Operand, inputs: tuple[Operand, ...], how: How, name: str) -> None:
    """Raise Overlap for an output that shares memory with an input or with itself."""
    if overlap.folded(result.shape, result.strides):
        raise Overlap(f"{name} has several indices for one element (strides {result.strides}): pass an array of its own")
    here = (result.address, result.shape, result.strides)
    for other, which in zip(inputs, how.names, strict=False):
        if same_memory(result, other) and overlap.share(here, (other.address, other.shape, other.strides), other.size):
            raise overlap.refuse(name, which)


def same_memory(one: Operand, other: Operand) -> bool:
    """Return True if two addresses can be compared: always, except between two memory objects of OpenCL."""
    return one.memory is None or other.memory is None or one.memory == other.memory


def spread(view: View, batch: tuple[int, ...]) -> View:
    """Return a view broadcast over the batch."""
    own = view.shape[:-2]
    missing = len(batch) - len(own)
    steps = tuple(0 if n == 1 else s for n, s in zip(own, view.strides[:-2], strict=True))
    return View(view.operand, (*batch, *view.shape[-2:]), (*(0,) * missing, *steps, *view.strides[-2:]), view.offset)


def _with_vectors(result: Operand, batch: tuple[int, ...], row: bool, column: bool) -> View:
    """Return the result as a batch of matrices, with the dimension that a vector left out."""
    shape, strides = list(result.shape), list(result.strides)
    if row:
        shape.insert(len(batch), 1)
        strides.insert(len(batch), 0)
    if column:
        shape.append(1)
        strides.append(0)
    return View(result, tuple(shape), tuple(strides))
