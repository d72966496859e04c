"""BLAS routines ``matmul``, ``sgemm`` and ``sgemv``, with the parameters and the meaning of NumPy's and SciPy's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from toprung import arrays
from toprung.arrays.base import Operand
from toprung.arrays.numpy import adapter as numpy_adapter
from toprung.backends.base import Session
from toprung.blas import calls, epilogue
from toprung.blas.operands import How, View, apart, arranged, converted, finished, sizes, taken, together
from toprung.blas.packed import PackedOperand
from toprung.blas.product import copy, decided
from toprung.device import Device
from toprung.dispatch import known_precision
from toprung.errors import BadArgument, BadShape
from toprung.gemm.layout import dense

RECORDERS: dict[str, Callable[..., Any]] = {}
"""Functions that take the place of ``matmul`` where an array's library must see the product, by the adapter's name. What knows the
library lies above this package, and ``toprung`` names it here."""


def matmul(
    a: Any, b: Any, out: Any = None, *, bias: Any = None, activation: str | None = None, precision: str = "auto", own: bool = False,
    device: Device | str | None = None,
) -> Any:  # fmt: skip
    """Return the float32 product of two arrays by NumPy's rules, with an epilogue: f(A·B + bias).

    Parameters
    ----------
    a : (…, M, K) or (K,), float32, of any library toprung knows and with any strides; nested lists count as float32. A vector is a
        row, which the result leaves out. NumPy, PyTorch, CuPy and JAX arrays may have float16 or bfloat16, which is not rounded
    b : (…, K, N) or (K,), of the types of ``a`` in any mix, where ``a`` lies. A vector is a column, which the result leaves out;
        dimensions before the last two are a batch and broadcast with ``a``'s. Or a PackedOperand from ``toprung.prepack``
    out : (…, M, N), float32, of any strides: the array to put the result into. It must not overlap ``a`` or ``b``
    bias : float32 array that broadcasts to the result and is added to it: (N,) to each row, (M, 1) to each column; ``out`` itself,
        to add to what it has
    activation : function of the sum: ``"relu"``, or ``"gelu"`` in its form with tanh; None for none
    precision : ``"fp32"``, IEEE single; ``"fp32x"``, as accurate, on matrix units where the device has them; ``"auto"``, the faster
        of both; ``"fp32x-strassen"``, faster on large products, with errors that are small beside the norms of A and B alone;
        ``"tf32"``, cuBLAS's, which is not as accurate
    own : True to run only toprung's kernels; False to run an installed library where that is faster
    device : device that multiplies host arrays: an id or a part of a name, as ``toprung devices`` lists it, or a Device; by default
        the best, or the host's BLAS where moving the arrays would take longer

    Returns
    -------
    ``out``, or a float32 array (…, M, N) of ``a``'s kind where ``a`` lies; of two vectors a number. Work on a GPU is put into the
    library's current stream, and the call returns before it finishes, unless an array comes by DLPack or names no stream; a result
    on the host is complete.

    Raises
    ------
    BadArray
        an operand of another type, or ``out`` with a gradient to record (a TypeError)
    BadShape, Overlap, MixedPlaces
        operands that do not fit together (ValueErrors)
    StaleOperand
        a prepacked operand whose tensor has been written to since (a ValueError)
    BadArgument, Unsupported, UnknownName
        a precision or a device that does not exist, or not here (ValueErrors)
    OutOfDeviceMemory, BuildError, LaunchError, NoDevice, ForkedDevice
        what the device cannot do; before anything is launched, inputs and ``out`` are as they were

    Examples
    --------
    >>> import numpy as np, toprung
    >>> toprung.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    plain = bias is None and activation is None
    key: Hashable = None
    if plain:
        found, key = calls.again(a, b, out, precision, own, device)
        if found is not calls.MISS:
            return found
    for thing in (a, b.source if isinstance(b, PackedOperand) else b, *(() if bias is None else (bias,))):
        library = arrays.adapter_of(thing)
        if library is not None and library.name in RECORDERS and library.is_recorded(thing):
            return RECORDERS[library.name](a, b, out, precision, own, device, bias, epilogue.known_activation(activation))
    if plain:
        return _looked_at(a, b, out, precision, own, device, key)
    function = epilogue.known_activation(activation)
    ready = epilogue.ready(epilogue.checked(a, b, out, bias, function, How("matmul", precision, own, device)))
    epilogue.run(ready)
    return finished(ready.given, out)


def computed(a: Any, b: Any, out: Any, precision: str, own: bool, device: Device | str | None) -> Any:
    """Return what ``matmul`` returns of arrays of which nothing is recorded, or has been recorded already."""
    found, key = calls.again(a, b, out, precision, own, device)
    return _looked_at(a, b, out, precision, own, device, key) if found is calls.MISS else found


def _looked_at(a: Any, b: Any, out: Any, precision: str, own: bool, device: Device | str | None, key: Hashable) -> Any:
    """Return a product that is decided now, and remembered under a key."""
    how, packed = How("matmul", precision, own, device), None
    if isinstance(b, PackedOperand):
        b.check()
        how, packed, b = how._replace(precision=b.asked(precision)), b.terms, b.array
    given = arranged(*taken(a, b, out), out, how)
    call = decided(1.0, given.a, given.b, 0.0, given.c, how, partial(_ranged, key))
    call.run(1.0, given.a, given.b, 0.0, given.c, packed)
    if packed is None:
        calls.remember(key, call, given)
    return finished(given, out)


def _ranged(key: Hashable, session: Session, *product: Any) -> Any:
    """Return the executable of a product whose call may be remembered by a key: that of its range, or what is selected."""
    if key is None or session.device.backend != "cuda":
        return product[-1]()
    from toprung.blas import fresh  # CUDA's, which other devices do not need

    return fresh.executable(key, session, *product)


def _multiply(alpha: float, a: View, b: View, beta: float, c: View, how: How) -> None:
    """Compute C = α·A·B + β·C, α and β rounded to float32: a tiny α becomes 0, a huge one infinite."""
    with np.errstate(over="ignore"):
        alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    decided(alpha, a, b, beta, c, how).run(alpha, a, b, beta, c)


def _scalar(value: Any, name: str, default: float | None = None) -> float:
    """Return a number, or an array of one, as a float, and the default for None; raise BadArgument for anything else."""
    try:
        return float(default if value is None else value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    try:
        return float(np.asarray(value).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        raise BadArgument(f"{name} must be a real number, not {value!r}") from None


def _whole(value: Any, name: str, default: int | None = None) -> int:
    """Return an integer, converted as SciPy converts it, and the default for None; raise BadArgument if it cannot be."""
    try:
        return operator.index(default if value is None else value)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        if isinstance(value, (str, bytes)):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise BadArgument(f"{name} can't be converted to int: {value!r}") from None


def _transposed(value: Any, name: str, keyword: str) -> bool:
    """Return True for 1, and for 2, the conjugate transpose, which for real numbers is the transpose; False for 0."""
    number = _whole(value, name, 0)
    if number not in (0, 1, 2):
        raise BadArgument(f"{name} is 0, 1 or 2, not {number} ({name}>=0 && {name}<=2 failed for {keyword} {name})")
    return number != 0


def loose(thing: Any, name: str) -> Operand:
    """Return an operand as SciPy's wrappers take it: whatever converts to an array, integers and complex64 too.

    Raises
    ------
    BadArray
        an array of float64, or anything that does not convert to an array
    """
    found = arrays.adapter_of(thing)
    if found is not None and not isinstance(thing, (np.ndarray, np.generic)):
        return found.operand(thing, name)
    if isinstance(thing, np.generic):
        thing = thing.item()
    if not isinstance(thing, np.ndarray):
        thing = converted(thing, name)
    if thing.dtype.kind in "biu" or thing.dtype in (np.float16, np.complex64):
        thing = thing.astype(np.float32)
    elif thing.dtype.kind == "f" and thing.dtype.itemsize == 4:
        thing = thing.astype(np.float32, copy=False)
    return numpy_adapter.operand(thing, name)


def _matrix(operand: Operand, name: str) -> View:
    """Return a view with two dimensions, as SciPy's wrappers make them: a vector is a column, dimensions of one are left out."""
    dims = list(zip(operand.shape, operand.strides, strict=True))
    while len(dims) > 2 and any(n == 1 for n, _ in dims):
        dims.remove(next(d for d in dims if d[0] == 1))
    if len(dims) > 2:
        raise BadShape(f"{name} is {sizes(operand.shape)}, and this routine takes matrices: use matmul for batches")
    while len(dims) < 2:
        dims.append((1, 0))
    return View(operand, tuple(n for n, _ in dims), tuple(s for _, s in dims))


def _turned(view: View, turn: bool) -> View:
    if not turn:
        return view
    return View(view.operand, view.shape[::-1], view.strides[::-1], view.offset)


def sgemm(
    alpha: Any, a: Any, b: Any, beta: Any = 0.0, c: Any = None, trans_a: Any = 0, trans_b: Any = 0, overwrite_c: Any = 0,
    *, precision: str = "auto", own: bool = False, device: Device | str | None = None,
) -> Any:  # fmt: skip
    """Return C = α·op(A)·op(B) + β·C, with the parameters and the meaning of ``scipy.linalg.blas.sgemm``.

    Parameters
    ----------
    alpha, beta : numbers. α = 0 reads neither ``a`` nor ``b``, β = 0 does not read ``c``
    a : (M, K), or (K, M) with ``trans_a``; float32, or a list or integers that become it. Arrays of float64 are refused
    b : (K, N), or (N, K) with ``trans_b``; of the types of ``a``, where ``a`` lies. Vectors are columns
    c : (M, N), of the types of ``a``; without it C is zeros
    trans_a, trans_b : 1 or 2 for the transpose
    overwrite_c : True if ``c`` may be overwritten: it is, and is returned, if it is column-major and float32
    precision, own, device : as for ``matmul``

    Returns
    -------
    A column-major float32 array (M, N) of ``a``'s kind, or ``c``.

    Raises
    ------
    BadArray, BadShape, BadArgument, Overlap, MixedPlaces
        TypeErrors and ValueErrors, also where SciPy raises ``_fblas.error``; the rest as for ``matmul``

    Examples
    --------
    >>> import toprung
    >>> toprung.sgemm(2.0, [[1, 2], [3, 4]], [[1], [1]])
    array([[ 6.],
           [14.]], dtype=float32)
    """
    how = How("sgemm", precision, own, device, ("a", "b", "c"))
    known_precision(precision)
    factor, keep = _scalar(alpha, "alpha"), _scalar(beta, "beta", 0.0)
    turn_a, turn_b = _transposed(trans_a, "trans_a", "3rd keyword"), _transposed(trans_b, "trans_b", "4th keyword")
    may_write = bool(_whole(overwrite_c, "overwrite_c"))
    first, second = loose(a, "a"), loose(b, "b")
    third = None if c is None else loose(c, "c")
    together([first, second, *([third] if third else [])], how)
    left, right = _turned(_matrix(first, "a"), turn_a), _turned(_matrix(second, "b"), turn_b)
    if left.shape[1] != right.shape[0]:
        raise BadShape(
            f"op(a) is {sizes(left.shape)} and op(b) is {sizes(right.shape)}: the columns of the first must be as many as the rows "
            f"of the second; trans_a and trans_b transpose (failed for hidden n: sgemm:n={right.shape[1]})"
        )
    shape = (left.shape[0], right.shape[1])
    if third is None:
        made = first.adapter.empty(first, shape, fortran=True)
        target, view, keep = first.adapter.operand(made, "the result"), None, 0.0
    else:
        old = _matrix(third, "c")
        if old.shape != shape:
            raise BadShape(f"c is {sizes(third.shape)}, and the result is {sizes(shape)}")
        given = dense(old.shape, old.strides, fortran=True)
        if may_write and third.thing is c and given and third.writable:
            apart(third, (first, second), how, "c")
            made, target, view = c, third, old
        else:
            made = third.adapter.empty(third, third.shape, fortran=True)
            target = third.adapter.operand(made, "the result")
            view = _matrix(target, "c")
            if keep != 0:
                copy(old, view)
    _multiply(factor, left, right, keep, view or View(target, target.shape, target.strides), how)
    return made if made is c else first.adapter.returned(made, first)


def sgemv(
    alpha: Any, a: Any, x: Any, beta: Any = 0.0, y: Any = None, offx: Any = 0, incx: Any = 1, offy: Any = 0, incy: Any = 1,
    trans: Any = 0, overwrite_y: Any = 0, *, precision: str = "auto", own: bool = False, device: Device | str | None = None,
) -> Any:  # fmt: skip
    """Return y = α·op(A)·x + β·y, with the parameters and the meaning of ``scipy.linalg.blas.sgemv``.

    Parameters
    ----------
    alpha, beta : numbers. α = 0 reads neither ``a`` nor ``x``, β = 0 does not read ``y``
    a : (M, N), as for ``sgemm``
    x : vector of at least N elements ``incx`` apart, M with ``trans``; float32, or a list or integers that become it
    y : vector of at least M elements ``incy`` apart, N with ``trans``; of the types of ``x``; without it y is zeros
    offx, incx : offset and increment in elements: ``x[offx]``, ``x[offx + |incx|]``, …; with a negative ``incx``, last to first
    offy, incy : the same for y, which may be longer than the result: its other elements stay
    trans : 1 or 2 for the transpose
    overwrite_y : True if ``y`` may be overwritten: it is, and is returned, if it is contiguous and float32
    precision, own, device : as for ``matmul``

    Returns
    -------
    A float32 vector of ``a``'s kind, or ``y``. Without ``y``: zeros with the result at ``offy``, ``incy`` apart.

    Raises
    ------
    BadArray, BadShape, BadArgument, Overlap, MixedPlaces
        TypeErrors and ValueErrors, also where SciPy raises ``_fblas.error``; the rest as for ``matmul``

    Examples
    --------
    >>> import toprung
    >>> toprung.sgemv(1.0, [[1, 2], [3, 4]], [1, 1])
    array([3., 7.], dtype=float32)
    """
    how = How("sgemv", precision, own, device, ("a", "x", "y"))
    known_precision(precision)
    factor, keep = _scalar(alpha, "alpha"), _scalar(beta, "beta", 0.0)
    turn = _transposed(trans, "trans", "7th keyword")
    may_write = bool(_whole(overwrite_y, "overwrite_y"))
    steps = [_whole(v, n, 1) for v, n in ((incx, "incx"), (incy, "incy"))]
    starts = [_whole(v, n, 0) for v, n in ((offx, "offx"), (offy, "offy"))]
    for step, name, place in zip(steps, ("incx", "incy"), ("4th", "6th"), strict=True):
        if step == 0:
            raise BadArgument(f"{name} must not be 0 ({name}>0||{name}<0 failed for {place} keyword {name})")
    first, second = loose(a, "a"), loose(x, "x")
    third = None if y is None else loose(y, "y")
    together([first, second, *([third] if third else [])], how)
    matrix = _turned(_matrix(first, "a"), turn)
    rows, cols = matrix.shape
    vector = _strided(_flat(second, "x"), cols, starts[0], steps[0], "x", "3rd argument")
    length = starts[1] + 1 + (rows - 1) * abs(steps[1]) if rows else 0
    if third is None:
        if starts[1] < 0 or rows == 0:
            raise BadShape(f"offy = {starts[1]} and {rows} rows leave no y (offy>=0 && offy<len(y) failed for 2nd keyword y)")
        made = first.adapter.empty(first, (length,))
        target = flat = first.adapter.operand(made, "the result")
        keep = 0.0
        if length > rows:  # zeros lie between the elements and in front of them
            zeros = View(target, (length, 1), (1, 0))
            _multiply(0.0, View(first, (length, 0), (0, 1)), View(second, (0, 1), (1, 1)), 0.0, zeros, how)
        view = _strided(flat, rows, starts[1], steps[1], "y", "2nd keyword")
    else:
        flat = _flat(third, "y")
        view = _strided(flat, rows, starts[1], steps[1], "y", "2nd keyword")
        if may_write and third.thing is y and third.writable and dense(third.shape, third.strides, fortran=True):
            apart(third, (first, second), how, "y")
            made = y
        else:
            made = third.adapter.empty(third, third.shape, fortran=True)
            target = _flat(third.adapter.operand(made, "the result"), "y")
            if keep != 0 or flat.shape[0] > rows:
                copy(View(flat, (*flat.shape, 1), (*flat.strides, 0)), View(target, (*target.shape, 1), (*target.strides, 0)))
            view = _strided(target, rows, starts[1], steps[1], "y", "2nd keyword")
    _multiply(factor, matrix, vector, keep, view, how)
    return made if made is y else first.adapter.returned(made, first)


def _flat(operand: Operand, name: str) -> Operand:
    """Return an operand with one dimension: the columns of a matrix are joined as Fortran joins them, in a copy if need be."""
    if len(operand.shape) == 1:
        return operand
    if not dense(operand.shape, operand.strides, fortran=True):
        joined = operand.adapter.operand(operand.adapter.empty(operand, operand.shape, fortran=True), name)
        copy(View(operand, operand.shape, operand.strides), View(joined, joined.shape, joined.strides))
        operand = joined
    return operand._replace(shape=(math.prod(operand.shape),), strides=(1,))


def _strided(flat: Operand, count: int, start: int, step: int, name: str, which: str) -> View:
    """Return ``count`` elements of a vector as a column, as BLAS counts: a negative increment begins at the far end."""
    (length,), (apart_,) = flat.shape, flat.strides
    if not 0 <= start < max(length, 1) or length == 0:
        raise BadShape(
            f"{name} has {length} elements and begins at {start} (off{name}>=0 && off{name}<len({name}) failed for {which} {name})"
        )
    if length <= start + (count - 1) * abs(step):
        raise BadShape(
            f"{name} has {length} elements, and {count} of them, {abs(step)} apart from {start} on, were asked for "
            f"(len({name})>off{name}+(n-1)*abs(inc{name}) failed for {which} {name})"
        )
    first = start if step > 0 else start + (count - 1) * -step
    return View(flat, (count, 1), (step * apart_, 0), first * apart_)
