"""Fresh sizes: ranges of sizes start calls that differ from known ones in one size, with no selection.

After ``FRESH`` products in the memory of a CUDA device that differ in nothing else, the range of the last one is planned in the
background. Of NumPy arrays it is the copies there that count. All sizes of a range are checked, so a product has the same bits
before and after its range is found. ``native/entry.cpp`` starts tensors of a size inside by the range's plan, other arrays' calls
are Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from toprung.backends import native_plan
from toprung.blas import background, calls, remembered
from toprung.blas.operands import How, View
from toprung.blas.product import OnDevice
from toprung.blas.ranges import AXES, MOVING, Operands, Range, resized, words_of
from toprung.dispatch import autotune

FRESH = 3
"""Number of different sizes after which a range is looked for."""


class Kin:
    """Calls that differ in the size along an axis alone: the number since the last search, and the ranges."""

    def __init__(self) -> None:
        self.met, self.job, self.ranges = 0, cast("background.Job | None", None), list[Range]()

    def find(self, size: int) -> Range | None:
        """Return the range of a size; None if it is in none."""
        return next((one for one in self.ranges if one.made.first <= size <= one.made.last), None)

    def inside(self, size: int, key: Hashable, like: Any) -> Inside | None:
        """Remember a call of a size by its C++ key, and return it; None if the size is in no range. ``like``: the call's A."""
        if (found := self.find(size)) is not None:
            calls._calls.keep(key, made := Inside(found, size, like))
            return made
        return None


class Inside(OnDevice):
    """A call of a size inside a range: C++ starts it, and its Python part is made when it is first needed."""

    def __init__(self, found: Range, size: int, like: Any) -> None:
        self._at, self.adapter, c = partial(found.at, size), found.call.adapter, found.operands.c
        self.shape, strides = resized(c.shape, c.strides, MOVING[found.axis][2], size)
        entry = native_plan.entry()
        start, self._plan = entry.start(entry.filled(*found.packed, size))
        self.native = start, self.adapter.maker(like, self.shape, strides), self.receipt, self.prepare

    def __getattr__(self, name: str) -> Any:
        self.made = self.__dict__.get("made") or self._at()
        return getattr(self.made, name)

    def prepare(self, stream: int) -> None:
        """Allocate the flags of a stream, as ``NativePlan.prepare``."""
        executable = self.executable
        native_plan.NativePlan.of(native_plan.entry().library, executable.session, executable.plan).prepare(stream)


def executable(key: Hashable, session: Any, a: View, b: View, c: View, how: How, make: Callable[[], Any]) -> Any:
    """Return the executable of a product: its range's if its size is in one, else what ``make`` selects.

    After ``FRESH`` sizes outside of ranges, one is planned in the background. ``key``: the call's; if C++ made it, C++ finds the
    ranges of such calls from then on.
    """
    if (entry := native_plan.entry()) is None:
        return make()
    operands, kin = Operands(a, b, c, 0.0, None, "", how), dict[int, Kin]()
    # a panel of host arrays, which has no thing, is not what the call's key says: C++ would start a kernel on the host's addresses
    native = isinstance(key, bytes) and a.operand.thing is not None
    for axis in AXES:
        if size := operands.size(axis):
            shared = a.operand.adapter, operands.kin(axis)
            words = (native and entry.kindred(key, axis)) or shared
            kin[axis] = one = calls.kin[shared] or calls.kin[words] or Kin()  # one may be dropped before the other
            for name in (shared, words):
                if calls.kin[name] is not one:
                    calls.kin.keep(name, one)
            if found := one.find(size):
                return found.executable(size)
    made = make()
    for axis, one in kin.items():
        one.met += 1
        if one.met >= FRESH and (one.job is None or one.job.done.is_set()):
            one.met = 0
            if isinstance(made, str) or not made.program.is_direct or autotune.HERE.level() == "measure":
                return made
            a, b, c = (v._replace(operand=v.operand._replace(thing=None, host=None)) for v in (a, b, c))
            work = partial(plan, one, axis, OnDevice(made, a, b, c, how), operands._replace(a=a, b=b, c=c))
            one.job = background.Job(work, f"a range of {operands.text()}")
            background.HERE.begin(one.job, background.LATER)
            break
    return made


def plan(one: Kin, axis: int, call: OnDevice, operands: Operands) -> None:
    """Find the range of a call, if there is one; runs in the background, where nothing may raise."""
    session, (selection,) = cast(Any, call.executable.session), call.executable.selections.values()
    with suppress(Exception):  # on an error products are selected as before
        for found in remembered.found(session.device, operands, axis, "", True):
            if found.made is not None and found.selection.candidate == selection.candidate and selection.unproven is None:
                ours = words_of(session, call.executable.plan, operands)
                one.ranges.append(Range.of(call, operands, ours, found.words, axis, found.made))
