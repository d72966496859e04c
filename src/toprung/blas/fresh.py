"""Fresh sizes: ranges of sizes start calls that differ from known ones in one size, with no selection.

After ``FRESH`` products in the memory of a CUDA device that differ in nothing else, the range of the last one is planned in the
background. Of NumPy arrays it is the copies there that count. All sizes of a range are checked, so a product has the same bits
before and after its range is found. ``native/entry.cpp`` starts tensors of a size inside by the range's plan, other arrays' calls
are Python's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

from toprung.backends import native_plan
from toprung.blas import background, calls, remembered
from toprung.blas.operands import How, View
from toprung.blas.product import OnDevice
from toprung.blas.ranges import AXES, HEAD, MOVING, Operands, Range, resized, words_of
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


class Inside(OnDevice):
    """A call of a size inside a range: C++ starts it, and its Python part is made when it is first needed."""

    def __init__(self, found: Range, size: int, thing: Any) -> None:
        executable, (_, _, c, *_) = found.call.executable, found.operands
        self._at, self.adapter = partial(found.at, size), found.call.adapter
        self.shape, strides = resized(c.shape, c.strides, MOVING[found.axis][2], size)
        words = found.made.at(size)
        plan = native_plan.of_words(executable.plan, words[HEAD:])
        made = native_plan.NativePlan(native_plan.entry().library, executable.session, plan)
        lent, *reach = words[:HEAD].tolist()
        like = c.operand._replace(thing=thing, shape=self.shape, strides=strides)
        self.native = calls.START.pack(made.handle, lent, 0, *reach), self.adapter.maker(like), self.receipt, made.prepare

    def __getattr__(self, name: str) -> Any:
        self.made = self.__dict__.get("made") or self._at()
        return getattr(self.made, name)


def kindred(key: Hashable) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (axis, size, words) for each size in a call's C++ key; the words are those of all calls that differ in it alone."""
    words = struct.unpack(f"={len(key) // 8}q", key) if isinstance(key, bytes) else ()
    places, at = [], 1  # after the number of the options: device, type and number of dimensions, then size and stride of each
    while at < len(words):
        places.append((at + 2, words[at + 1] & 255))
        at += 2 + 2 * (words[at + 1] & 255)
    if any(dims not in (2, 3) for _, dims in places):
        return
    for axis in AXES:
        made, size = list(words), 0
        for (place, dims), moving in zip(places, MOVING[axis], strict=False):
            if dims == 3 and words[place + 1] == words[place + 2] * words[place + 4]:
                made[place + 1] = -1  # it follows from the others
            if moving is not None and dims + moving >= 0:
                at = place + 2 * (dims + moving)
                size = size or words[at]
                if words[at] == size:  # a batch of one is shared by all, and stays one
                    made[at] = -1
        if size > 1:
            yield axis, size, (axis, *made)


def find(key: Hashable, a: Any) -> bool:
    """Remember an unknown call by its C++ key if its size is in a range that such a key has led to before; else return False."""
    for _, size, shared in kindred(key):
        one = calls.kin[shared]
        if one is not None and (found := one.find(size)) is not None:
            calls._calls.keep(key, Inside(found, size, a))
            return True
    return False


def executable(key: Hashable, session: Any, a: View, b: View, c: View, how: How, make: Callable[[], Any]) -> Any:
    """Return the executable of a product: its range's if its size is in one, else what ``make`` selects.

    After ``FRESH`` sizes outside of ranges, one is planned in the background. ``key``: the call's; if C++ made it, ``find`` knows
    the ranges of such calls from then on.
    """
    if native_plan.entry() is None:
        return make()
    operands, kin = Operands(a, b, c, 0.0, None, "", how), dict[int, Kin]()
    # a panel of host arrays, which has no thing, is not what the call's key says: C++ would start a kernel on the host's addresses
    words = {axis: words for axis, _, words in kindred(key)} if a.operand.thing is not None else {}
    for axis in AXES:
        if size := operands.size(axis):
            shared = a.operand.adapter, operands.kin(axis)
            kin[axis] = one = calls.kin[shared] or calls.kin[words.get(axis)] or Kin()  # one may be dropped before the other
            for name in (shared, words.get(axis, shared)):
                if calls.kin[name] is not one:
                    calls.kin.keep(name, one)
            if found := one.find(size):
                return found.at(size).executable
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
