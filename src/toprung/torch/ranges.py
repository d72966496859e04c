"""Ranges of sizes: products that differ from known ones in one size alone need no selection, no compiling and no Python.

A program whose batch sizes, sequence lengths or graphs change meets a new kind of product in each step. Once a few that differ in
one size have been met, ``around`` plans some more of them, and finds for which sizes between the same configuration is right and
how the plan follows from the size. The bridge makes the plan of any other size there from that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from toprung.backends import native_plan
from toprung.backends.cuda import CUDASession
from toprung.backends.forms import Fitted, Words, fitted
from toprung.backends.plan import Plan
from toprung.blas.installed import not_faster
from toprung.blas.operands import How, View
from toprung.blas.product import OnDevice
from toprung.dispatch import ranking
from toprung.dispatch.select import select
from toprung.dispatch.selection import Selection
from toprung.errors import ToprungError
from toprung.execute.executable import Executable
from toprung.gemm.lowering import Program, epilogue_of, lower
from toprung.gemm.overlap import span
from toprung.kernels.hopper import Counter
from toprung.kernels.launch import launches_of
from toprung.torch import background, bridge

AXES = ROWS, DEPTH, BATCH = range(3)
"""Sizes that may differ, as ``Axis`` in ``bridge.cpp``: rows of A and C, columns of A and rows of B, and matrices of a batch."""

NEAR = 1.05
"""Most that the configuration of a range may take for one of its sizes, by the cost model, in times of the best."""

NARROWER = 4
"""Factor by which the next range that is tried is narrower."""

NARROWEST = 8
"""Sizes of the narrowest range that is tried."""

FEW = 4
"""Calls with other sizes that are PyTorch's before Python is asked again, while a range is looked for."""


def resized(
    shape: tuple[int, ...], strides: tuple[int, ...], dim: int | None, size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides with another size along a dimension; matrices without gaps between them have none then, either."""
    made = list(shape)
    if dim is not None:
        made[dim] = size
    if len(shape) == 3 and strides[0] == shape[1] * shape[2]:
        strides = (made[1] * made[2], *strides[1:])
    return tuple(made), strides


class Operands(NamedTuple):
    """All that decides a product; ``bias`` has the strides, in C's shape, of what its own launch may add."""

    a: View
    b: View
    c: View
    beta: float
    bias: tuple[int, ...] | None
    activation: str
    how: How

    def size(self, axis: int) -> int:
        """Return the size along an axis; 0 where a range would make no sense."""
        if axis == BATCH and len(self.b.shape) < 3:
            return 0
        size = self.a.shape[(-2, -1, 0)[axis]]
        return size if size > 1 else 0

    def at(self, axis: int, size: int) -> Operands:
        """Return the product with another size."""
        dims = ((-2, None, -2), (-1, -2, None), (0, 0, 0))[axis]

        def other(view: View, dim: int | None) -> View:
            shape, strides = resized(view.shape, view.strides, dim, size)
            return replace(view, shape=shape, strides=strides)

        bias = self.bias and resized(self.c.shape, self.bias, dims[2], size)[1]
        a, b, c = map(other, self[:3], dims)
        return self._replace(a=a, b=b, c=c, bias=bias)

    def kin(self, axis: int) -> Hashable:
        """Return what products that differ in the size along an axis share."""
        there = self.at(axis, -1)
        return axis, there.bias, *there[3:4], *there[5:], *((v.shape, v.layout, v.operand.home) for v in there[:3])

    def text(self) -> str:
        """Return batch, M, N and K as readable text."""
        batch = f"{self.a.shape[0]}×" if len(self.a.shape) == 3 else ""
        return f"{batch}{self.a.shape[-2]}×{self.b.shape[-1]}×{self.a.shape[-1]}"

    def program(self, fused: bool) -> Program | None:
        """Return the product as one launch on the operands as they are, ``fused`` with what is added; None if it is none."""
        program = lower(self.a.layout, self.b.layout, self.c.layout, self.beta, True)
        if not program.is_direct or not fused:
            return program if program.is_direct else None
        (desc,) = program.descs
        epilogue = epilogue_of(desc, self.c.shape, self.c.strides, self.bias, self.activation)
        return None if epilogue is None else Program.of(desc, epilogue)


class Range(NamedTuple):
    """Sizes along an axis for which products have one configuration, are PyTorch's, or each must be decided.

    Attributes
    ----------
    entry : the product that it was found from
    axis : what differs
    first, last : least and greatest size
    call : what computes the product; None where PyTorch's own does
    why : reason why PyTorch's own runs
    native : as the bridge has it
    """

    entry: Any
    axis: int
    first: int
    last: int
    call: OnDevice | None
    why: str
    native: bridge.Range

    def at(self, size: int) -> OnDevice:
        """Return what computes the product of a size, in Python: the same launches as the bridge's.

        Raises as ``Executable`` does.
        """
        assert self.call is not None
        there = self.entry.operands.at(self.axis, size)
        program = there.program(self.entry.fused)
        assert program is not None
        (selection,) = self.call.executable.selections.values()
        made = Executable(self.call.executable.session, program, {program.descs[0]: selection})
        return OnDevice(made, there.a, there.b, there.c, there.how)


@dataclass(eq=False)
class Kin:
    """Products that differ in the size along an axis alone.

    Attributes
    ----------
    left : calls that were PyTorch's before a range was looked for
    job : the last preparation of a range, to come, under way or done
    ranges : the first that has a size is its
    """

    axis: int
    left: int = 0
    job: background.Job | None = None
    ranges: list[Range] = field(default_factory=list)

    def find(self, size: int) -> Range | None:
        """Return the range of a size; None if there is none."""
        return next((one for one in self.ranges if one.first <= size <= one.last), None)


def only(entry: Any, axis: int, size: int) -> Range:
    """Return the range of one size, which is for Python to decide."""
    return Range(entry, axis, size, size, None, "", bridge.Range(first=size, last=size, verdict=bridge.UNKNOWN))


def around(entry: Any, operands: Operands, axis: int, call: Any, why: str, own: bool) -> Range:
    """Return the range of a product's size; of that size alone if no plan serves any other.

    Parameters
    ----------
    call : what would compute the product
    why : reason why PyTorch's own is better; empty if ``call`` is
    own : True if it is never asked whether PyTorch's is faster
    """
    size = operands.size(axis)
    session = call.executable.session if isinstance(call, OnDevice) else None
    if not isinstance(session, CUDASession) or operands.program(entry.fused) is None:
        return only(entry, axis, size)
    base = call.executable.plan
    (selection,) = call.executable.selections.values()

    def words(n: int) -> Words | None:
        there = operands.at(axis, n)
        if (program := there.program(entry.fused)) is None:
            return None
        (desc,) = program.descs
        try:
            found = select(session.device, desc, operands.how.own, operands.how.precision)
            if bool(why) != (not own and bool(not_faster(session.device, desc, found, ""))):
                return None
            if why:
                return np.zeros(0, np.int64)
            if found.candidate != selection.candidate and not is_near(session, desc, found, selection):
                return None
            plan = launches_of(session, desc, selection.family, selection.config, program.epilogue).plan
            reach = (x for v in there[:3] for x in span(0, v.shape, v.strides, v.operand.size))
            head = np.array((plan.lent_bytes, *reach), np.int64)
            return np.concatenate((head, np.array(native_plan.words_of(session, counted(plan, base)), np.uint64).view(np.int64)))
        except (ToprungError, OverflowError):  # a size beyond 32 bits, or a grid that no device has
            return None

    made = widest(words, size)
    if made is None:
        return only(entry, axis, size)
    native = bridge.Range.of(made, bridge.LEFT if why else bridge.TAKEN, entry.fused, entry.op)
    return Range(entry, axis, made.first, made.last, None if why else call, why, native)


def is_near(session: CUDASession, desc: Any, found: Selection, selection: Selection) -> bool:
    """Return True if a configuration is about as fast as the one that was selected, by its model, and as accurate."""
    if found.weighed or found.unproven or found.precision != selection.precision or selection.family.supports(session.device, desc):
        return False
    loss, _ = ranking.losses(session.device, desc, selection.candidate)
    return loss is not None and loss <= NEAR


def counted(plan: Plan, base: Plan) -> Plan:
    """Return a plan with the counters of another, which then counts for both."""
    counters = ([one.buffer for one in some.kept if isinstance(one, Counter)] for some in (plan, base))
    instead = {id(mine): theirs for mine, theirs in zip(*counters, strict=True)}
    launches = [one._replace(arguments=[instead.get(id(x), x) for x in one.arguments]) for one in plan.launches]
    return plan._replace(launches=launches)


def widest(words: Callable[[int], Words | None], size: int) -> Fitted | None:
    """Return the plan for the widest range of sizes that is found around one; None for none.

    Ranges end at multiples of powers of two, as tiles do.
    """
    known: dict[int, Words | None] = {}

    def plan(n: int) -> Words | None:
        if n not in known:
            known[n] = words(n)
        return known[n]

    drawn, width = random.Random(size), 1 << max((size - 1).bit_length() - 1, 0)
    while width >= NARROWEST:
        first = (size - 1) // width * width + 1
        if (made := fitted(plan, first, first + width - 1, drawn)) is not None:
            return made
        width //= NARROWER
    return None
