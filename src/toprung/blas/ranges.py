"""Ranges of sizes: products that differ in one size alone, with one configuration and a common plan.

``around`` selects for a product and plans some others that differ from it in one size. It finds the sizes for which the same
configuration is right, and the words of the plan as functions of the size. It needs no device: another process can run it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from toprung.backends import native_plan
from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.backends.cuda import CUDASession
from toprung.backends.forms import Fitted, Words, fitted
from toprung.backends.plan import Plan
from toprung.blas.installed import not_faster
from toprung.blas.operands import How, View
from toprung.blas.product import OnDevice
from toprung.device import Device
from toprung.dispatch import mixed, ranking
from toprung.dispatch.select import select
from toprung.dispatch.selection import Selection
from toprung.errors import LaunchError, ToprungError, Unsupported
from toprung.execute.executable import Executable
from toprung.gemm.lowering import Program, epilogue_of, lower
from toprung.gemm.overlap import span
from toprung.kernels import build
from toprung.kernels.base import Launches
from toprung.kernels.launch import launches_of

AXES = ROWS, DEPTH, BATCH = range(3)
"""Sizes that may differ, as ``Axis`` in ``bridge.cpp``: M, K and the number of matrices of a batch."""

MOVING = ((-2, None, -2), (-1, -2, None), (-3, -3, -3))
"""Dimensions of A, B and C with the size of each axis, counted from the last; None if there is none."""

NEAR = 1.05
"""Largest predicted time of a range's configuration at any of its sizes, over that of the best one."""

NARROWER = 4
"""Width of a range that was tried over that of the next one to try."""

NARROWEST, WIDEST = 8, 1024
"""Numbers of sizes in the narrowest range that is tried, and in the widest: a plan is made for each, in half a millisecond."""

SELECTED = 8
"""Random sizes of a range at which a configuration is selected, beside the first and the last."""


def resized(
    shape: tuple[int, ...], strides: tuple[int, ...], dim: int | None, size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides with another size along a dimension; contiguous batches stay contiguous."""
    made = list(shape)
    if dim is not None and len(shape) + dim >= 0:
        made[dim] = size
    if len(shape) == 3 and strides[0] == shape[1] * shape[2]:
        strides = (made[1] * made[2], *strides[1:])
    return tuple(made), strides


class Operands(NamedTuple):
    """A product's operands and options; ``bias``: strides, in C's shape, of a bias its launch may add."""

    a: View
    b: View
    c: View
    beta: float
    bias: tuple[int, ...] | None
    activation: str
    how: How

    def size(self, axis: int) -> int:
        """Return the size along an axis; 0 if there can be no range along it."""
        dims = len(self.a.shape), len(self.b.shape)
        if max(dims) > 3 or (axis == BATCH and dims != (3, 3)):
            return 0
        size = self.a.shape[(-2, -1, 0)[axis]]
        return size if size > 1 else 0

    def at(self, axis: int, size: int) -> Operands:
        """Return the product with another size."""

        def other(view: View, dim: int | None) -> View:
            shape, strides = resized(view.shape, view.strides, dim, size)
            return view._replace(shape=shape, strides=strides)

        bias = self.bias and resized(self.c.shape, self.bias, MOVING[axis][2], size)[1]
        a, b, c = map(other, self[:3], MOVING[axis])
        return self._replace(a=a, b=b, c=c, bias=bias)

    def kin(self, axis: int | None) -> Hashable:
        """Return the key shared by products that differ in the size along an axis alone, if there is one."""
        # a contiguous batch's stride follows: no array's own stride is like it
        size, dims = -1 << 62, (None,) * 3 if axis is None else MOVING[axis]
        there = ((*resized(v.shape, v.strides, n, size), v.layout[2:], v.operand.home) for v, n in zip(self[:3], dims, strict=True))
        return axis, self.bias and resized(self.c.shape, self.bias, dims[2], size)[1], self.beta, *self[5:], *there

    def text(self) -> str:
        """Return batch, M, N and K as readable text."""
        batch = f"{self.a.shape[0]}×" if len(self.a.shape) == 3 else ""
        return f"{batch}{self.a.shape[-2]}×{self.b.shape[-1]}×{self.a.shape[-1]}"

    def program(self, fused: bool) -> Program | None:
        """Return the product as one launch (``fused``: with bias and activation); None if it takes more."""
        program = lower(self.a.layout, self.b.layout, self.c.layout, self.beta, True)
        if not program.is_direct or not fused:
            return program if program.is_direct else None
        (desc,) = program.descs
        epilogue = epilogue_of(desc, self.c.shape, self.c.strides, self.bias, self.activation)
        return None if epilogue is None else Program.of(desc, epilogue)

    def call(self, session: Any, fused: bool, selection: Selection) -> OnDevice:
        """Return the call that computes the product by a selection. Raises as ``Executable`` does."""
        program = self.program(fused)
        assert program is not None
        return OnDevice(Executable(session, program, {program.descs[0]: selection}), self.a, self.b, self.c, self.how)


class Planned(CUDASession):
    """A GPU's session for planning alone: nothing is compiled or loaded, and addresses of memory are 0."""

    _context, _can_overlap = 0, False

    def __init__(self, device: Device) -> None:
        self.device, self.sources = device, list[Source]()

    def fingerprint(self) -> str:
        return ""

    def compile(self, source: Source) -> bytes:
        return b""

    def load(self, binary: bytes, source: Source) -> Any:
        self.sources.append(source)
        function = int(build.key_of(source, "")[:15], 16)  # plans with other kernels have other words
        return SimpleNamespace(source=source, function=function, dynamic=source.defines.get(DYNAMIC_SHARED, 0), largest=1024)

    def allocate(self, nbytes: int) -> Any:
        return SimpleNamespace(handle=0, part=lambda offset, size: self.allocate(size))

    def upload(self, buffer: Any, array: Any) -> None: ...


planned = functools.cache(Planned)


class Around(NamedTuple):
    """A product's selection, and the sizes for which it is right.

    Attributes
    ----------
    why : reason why the array library's own kernel is as fast; empty if it is not
    fused : True if the product's own launch adds the bias, and computes the activation
    words : words of the product's plan, as ``words_of`` returns them; empty if ``why`` is not
    sources : sources of its kernels that no earlier plan in the worker had
    made : plan of all the sizes; None if no plan serves any other
    """

    selection: Selection
    why: str
    fused: bool
    words: Words
    sources: tuple[Source, ...]
    made: Fitted | None


HEAD = 7
"""Number of words that ``words_of`` puts before those of a plan."""


def words_of(session: CUDASession, plan: Plan, operands: Operands) -> Words:
    """Return scratch bytes, the operands' extents and a plan's words, as ``Taking`` in ``bridge.cpp``."""
    reach = (x for v in operands[:3] for x in span(0, v.shape, v.strides, v.operand.size))
    head = np.array((plan.lent_bytes, *reach), np.int64)
    return np.concatenate((head, np.frombuffer(native_plan.words_of(session, plan), np.int64)))


class Range(NamedTuple):
    """Sizes along an axis, all with the configuration of one call.

    Attributes
    ----------
    call, operands : call with that configuration, and its operands
    made : plan of all the sizes, in words like those of ``words_of``, with the addresses of this process
    packed : its words and forms, as ``native/entry.cpp`` takes them
    """

    call: OnDevice
    operands: Operands
    axis: int
    made: Fitted
    packed: tuple[bytes, bytes]

    @classmethod
    def of(cls, call: OnDevice, operands: Operands, ours: Words, planned: Words, axis: int, made: Fitted) -> Range:
        """Return a range that a worker found, with this process's addresses in place of the worker's.

        ``ours``, ``planned``: words of one plan in this process and in the worker.
        """
        made = made._replace(words=np.where(ours != planned, ours, made.words))  # words that differ are addresses
        return cls(call, operands, axis, made, (made.words.tobytes(), np.column_stack(made.forms).tobytes()))

    def executable(self, size: int) -> Executable:
        """Return the executable of a size, with the plan's words filled in.

        Raises LaunchError if the launcher in C++ is missing.
        """
        own = self.call.executable
        if size == self.operands.size(self.axis):
            return own
        if (entry := native_plan.entry()) is None:
            raise LaunchError("a plan of a range needs the launcher in C++")
        words = entry.filled(*self.packed, size)[8 * HEAD :]
        return own.taking(Launches(own.session, native_plan.of_words(own.plan, words)))

    def at(self, size: int) -> OnDevice:
        """Return the call of a size by its ``executable``."""
        a, b, c, *_ = self.operands.at(self.axis, size)
        return OnDevice(self.executable(size), a, b, c, self.operands.how)


def around(device: Device, operands: Operands, axis: int | None, theirs: str, exact: bool = False) -> tuple[Around, ...]:
    """Select for a product, and find the sizes along an axis with that selection; empty if not one launch.

    Parameters
    ----------
    axis : None for the selection alone
    theirs : name of the array library's own kernel, to compare with it; empty to leave that out
    exact : True if each size of a range must have the very configuration that is selected for it
    """
    session, how = planned(device), operands.how
    session.sources.clear()

    def decided(program: Program) -> tuple[Selection, str]:
        (desc,) = program.descs
        halves = mixed.select(device, desc, how.precision, how.own) if not desc.is_vector and desc.is_mixed else None
        if isinstance(halves, str):
            raise Unsupported(f"halves are converted, {halves}")
        found = halves or select(device, desc, how.own, how.precision)
        return found, not_faster(device, desc, found, theirs) if theirs else ""

    if (program := operands.program(False)) is None:
        return ()
    selection, why = decided(program)
    if not why and not selection.family.own:  # a vendor's library has no plan
        return ()
    apart = operands.program(operands.bias is not None and len(operands.bias) == len(operands.c.shape))
    fused = not why and apart is not None and apart.epilogue is not None and apart.epilogue.needs <= selection.family.epilogues

    kernels = list[int]()

    def at(size: int) -> Operands:
        return operands if axis is None else operands.at(axis, size)

    def is_right(size: int) -> bool:
        try:
            if (program := at(size).program(fused)) is None:
                return False
            found, slower = decided(program)
        except (ToprungError, OverflowError):
            return False
        if why or slower:
            return bool(why) == bool(slower)
        return found.candidate == selection.candidate or (not exact and is_near(device, program.descs[0], found, selection))

    def words(size: int) -> Words | None:
        try:
            if (program := (there := at(size)).program(fused)) is None or (exact and not is_right(size)):
                return None
            if why:
                return np.zeros(0, np.int64)
            plan = launches_of(session, program.descs[0], selection.family, selection.config, program.epilogue).plan
            functions = [launch.kernel.function for launch in (*plan.launches, *(plan.scales or ()))]
            kernels[:] = kernels or functions
            # a kernel is an address, which is no function of the size: a split's text may change with K
            return words_of(session, plan, there) if functions == kernels else None
        except (ToprungError, OverflowError):  # a size beyond 32 bits, or a grid that no device has
            return None

    size = 0 if axis is None else operands.size(axis)
    if not is_right(size) or (here := words(size)) is None:
        return ()
    sources = tuple(session.sources)  # the product's own: plans of other sizes may have other kernels
    return (Around(selection, why, fused, here, sources, None if axis is None else widest(words, is_right, size)),)


def is_near(device: Device, desc: Any, found: Selection, selection: Selection) -> bool:
    """Return True if a configuration is predicted to be about as fast as the selected, and as accurate."""
    if found.weighed or found.unproven or found.precision != selection.precision or selection.family.supports(device, desc):
        return False
    loss, _ = ranking.losses(device, desc, selection.candidate)
    return loss is not None and loss <= NEAR


def widest(words: Callable[[int], Words | None], is_right: Callable[[int], bool], size: int) -> Fitted | None:
    """Return the plan for the widest range of sizes that is found around one; None if there is none.

    Ranges end at multiples of powers of two, as tiles do. ``words`` plans each size, ``is_right`` selects at some of them.
    """
    drawn, width = random.Random(size), min(1 << max((size - 1).bit_length() - 1, 0), WIDEST)
    while width >= NARROWEST:
        first = (size - 1) // width * width + 1
        some = first, first + width - 1, *drawn.choices(range(first, first + width), k=SELECTED)
        if all(map(is_right, some)) and (made := fitted(words, first, first + width - 1, drawn)) is not None:
            return made
        width //= NARROWER
    return None
