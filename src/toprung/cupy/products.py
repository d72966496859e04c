"""Products of CuPy arrays: each kind is looked at once, and then started, or left to CuPy, by a few cheap attributes.

``multiply`` is on the way of every matrix product of the program: what it asks of an array costs a tenth of a microsecond each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any

import cupy

from toprung.arrays.cuda_interface import LEGACY
from toprung.arrays.cupy import adapter
from toprung.blas import idle
from toprung.blas.counted import BySettings, CountedEntry, CountedProducts
from toprung.blas.installed import slower
from toprung.blas.operands import How, arranged
from toprung.blas.product import decided
from toprung.cupy.settings import Settings
from toprung.errors import Overlap, ToprungError, let_through

KEPT = 4096
"""Number of kinds of products, the last, that are remembered for a set of settings; of others only counts are kept."""

ndarray: Any = cupy.ndarray
FLOAT32 = "f"

AS_FP32 = (
    cupy._core._routines_linalg.COMPUTE_TYPE_DEFAULT, cupy._core._routines_linalg.COMPUTE_TYPE_FP32,
)  # fmt: skip
"""CuPy's compute types of float32 that ask for fp32, and for nothing more: TF32 is less, the pedantic one forbids other sums."""

compute_type: Callable[[str], int] = cupy._core.get_compute_type
current_device: Callable[[], int] = cupy.cuda.runtime.getDevice


def current_stream(number: int) -> int:
    """Return the handle of CuPy's current stream of a device, on this thread."""
    return int(cupy.cuda.get_current_stream(number).ptr)


class Entry(CountedEntry):
    """A kind of product of CuPy's."""

    __slots__ = ()

    @property
    def kernel(self) -> str:
        # kernels that run it, with their tiles and their path; empty if CuPy's own does
        left = self.call.receipt() if self.call is not None else None
        return f"{', '.join(left.kernels)} ({left.precision})" if left is not None else ""


class Products(CountedProducts[Entry]):
    """The products of a set of settings; ``small`` counts only those of float32."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, KEPT)
        self.settings = settings


now: Products | None = None
"""Products of the settings that are active; None while CuPy's own run."""


def multiply(a: Any, b: Any, out: Any = None) -> Any:
    """Return A·B by ``matmul``'s rules in ``out``, or a new array; None if CuPy's own must run: then nothing was written.

    The operands may be anything: whatever CuPy would refuse is left to it, so that its own errors are raised.
    """
    products = now
    if products is None or type(a) is not ndarray or type(b) is not ndarray or (out is not None and type(out) is not ndarray):
        return None
    if a.dtype.char != FLOAT32 or b.dtype.char != FLOAT32 or (out is not None and out.dtype.char != FLOAT32):
        return None
    shape_a, shape_b = a.shape, b.shape
    if not shape_a or not shape_b:
        return None
    # of a batch that is broadcast one operand has every matrix
    work = max(a.size * (shape_b[-1] if len(shape_b) > 1 else 1), b.size * (shape_a[-2] if len(shape_a) > 1 else 1))
    if work < products.least or not a.size or not b.size:
        products.small += 1
        return None
    data_a, data_b = a.data, b.data
    at_a, at_b, number, at_c = data_a.ptr, data_b.ptr, data_a.device_id, 0
    key: Hashable = (shape_a, a.strides, at_a & 15, shape_b, b.strides, at_b & 15, number, data_b.device_id)
    if out is not None:
        at_c = out.data.ptr
        key = (key, out.shape, out.strides, at_c & 15, out.data.device_id)
    entry = products.entries[key]
    if entry is not None and entry.call is None:
        entry.left += 1
        return None
    reason = asked_for(number)
    if reason:
        products.refuse(reason)
        return None
    if entry is None:
        entry = _new(products, key, a, b, out)
        if entry is None:
            return None
    call = entry.call
    if call is None or (out is not None and not call.is_clear(at_a, at_b, at_c)):  # CuPy copies where memory overlaps
        entry.left += 1
        return None
    if call.depends and not call.is_valid():
        products.entries.pop(key, None)
        return None
    try:
        if out is None:
            made = call.product(a, b, at_a, at_b)
        else:
            call.start(a, b, out, at_a, at_b, at_c)
            made = out
    except (ToprungError, cupy.cuda.memory.OutOfMemoryError) as error:  # of scratch memory that CuPy's own does not need, say
        if isinstance(error, ToprungError):
            entry.call, entry.why = None, str(error)
        entry.left += 1
        return None
    entry.taken += 1
    return made


def gpus() -> int:
    """Return a number of CUDA devices without starting CUDA: where there is none, CuPy makes no array and says so itself."""
    return 1


def asked_for(number: int) -> str:
    """Return what the program asks for, now and on this thread, that makes the product CuPy's; empty if nothing does."""
    if compute_type(FLOAT32) not in AS_FP32:
        return "the program asks for another compute type than fp32 (CUPY_TF32, cupy._core.set_compute_type)"
    if number != current_device():
        return "the arrays are not on CuPy's current device"
    stream = current_stream(number)
    # the legacy default stream cannot be captured, and asking about it would end another stream's capture
    if stream > LEGACY and cupy.cuda.runtime.streamIsCapturing(stream):
        return "the current stream is being captured: capture toprung.plan(a, b, out=c), called once before on this stream"
    return ""


def _new(products: Products, key: Hashable, a: Any, b: Any, out: Any) -> Entry | None:
    """Return the entry of a product that is seen for the first time, decided and compiled; None if it must not be kept."""
    settings = products.settings
    if not settings.own and settings.precision != "fp32":
        idle.tell("CuPy", gpus, a.data.device_id)
    entry = Entry(problem_of(a, b), lie(a) + lie(b))
    how = How("matmul", settings.precision, settings.own)
    try:
        target = None if out is None else adapter.operand(out, "out")
        given = arranged(adapter.operand(a, "a"), adapter.operand(b, "b"), target, out, how)
        if target is not None and target.shape != given.shape:
            entry.why = "the result has another shape than the product"
        else:
            call = decided(1.0, given.a, given.b, 0.0, given.c, how)
            call.shape = given.shape
            entry.why = "" if settings.own else slower(call, "CuPy's own")
            entry.call = None if entry.why else call
    except Overlap:  # by these addresses, and not by the kind
        return None
    except cupy.cuda.memory.OutOfMemoryError:  # of the result, which CuPy's own will raise in its own way
        return None
    except Exception as error:
        let_through(error)
        entry.why = f"{type(error).__name__}: {error}"
        if not isinstance(error, ToprungError):  # a fault of ours, which CuPy's users need not suffer from, but should see
            warnings.warn(f"toprung leaves {entry.problem} to CuPy: {entry.why}", RuntimeWarning, stacklevel=2)
    products.entries.keep(key, entry)
    return entry


def problem_of(a: Any, b: Any) -> str:
    """Return the shapes of both operands as readable text."""
    return " · ".join("×".join(map(str, x.shape)) for x in (a, b))


def lie(array: Any) -> str:
    """Return N for rows one after the other, T for columns, and S for anything else."""
    if array.ndim < 2 or array.strides[-1] == 4:
        return "N"
    return "T" if array.strides[-2] == 4 else "S"


_by_settings: BySettings[Settings, Products] = BySettings(Products)

products_of, every, forget = _by_settings.of, _by_settings.every, _by_settings.forget
