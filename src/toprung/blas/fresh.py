"""Fresh sizes: ranges of sizes start calls that differ from known ones in one size, with no selection.

``native/entry.cpp`` knows no call of a fresh size. After ``FRESH`` of them that differ in nothing else, the range of the last one
is planned in the background. All sizes of a range are checked, so a product has the same bits before and after its range is found.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

from toprung.backends import native_plan
from toprung.blas import background, calls, remembered
from toprung.blas.operands import Arranged
from toprung.blas.product import Call, OnDevice
from toprung.blas.ranges import AXES, HEAD, MOVING, Operands, Range, resized, words_of
from toprung.dispatch import autotune

FRESH = 3
"""Number of different sizes after which a range is looked for."""


class Kin:
    """Calls that differ in the size along an axis alone: the number since the last search, and the ranges."""

    def __init__(self) -> None:
        self.met, self.job, self.ranges = 0, cast("background.Job | None", None), list[Range]()


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


def kindred(key: Hashable) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (axis, words) for each size in a call's C++ key: the key of calls that differ in it alone."""
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
                made[at], size = -1, size or words[at]
        if size > 1:
            yield size, (axis, *made)


def find(key: Hashable, a: Any) -> bool:
    """Remember an unknown call by its key if its size is in a range; return False if it is in none."""
    for size, shared in kindred(key):
        one = calls.kin[shared]
        if one is None:
            calls.kin.keep(shared, one := Kin())
        for found in one.ranges:
            if found.made.first <= size <= found.made.last:
                calls._calls.keep(key, Inside(found, size, a))
                return True
        one.met += 1
    return False


def learn(key: Hashable, call: Call, given: Arranged) -> None:
    """Plan the range of a call in the background, if ``FRESH`` sizes were met that it may serve."""
    if call.native is None or not isinstance(call, OnDevice) or autotune.HERE.level() == "measure":
        return
    for _, shared in kindred(key):
        one = calls.kin[shared]
        if one is not None and one.met >= FRESH and (one.job is None or one.job.done.is_set()):
            one.met = 0
            a, b, c = (v._replace(operand=v.operand._replace(thing=None, host=None)) for v in (given.a, given.b, given.c))
            operands = Operands(a, b, c, 0.0, None, "", call.how)
            one.job = background.Job(partial(plan, one, shared[0], call, operands), f"a range of {operands.text()}")
            background.HERE.begin(one.job, background.LATER)
            return


def plan(one: Kin, axis: int, call: OnDevice, operands: Operands) -> None:
    """Find the range of a call, if there is one; runs in the background, where nothing may raise."""
    session, (selection,) = cast(Any, call.executable.session), call.executable.selections.values()
    with suppress(Exception):  # on an error products are selected as before
        for found in remembered.found(session.device, operands, axis, "", True):
            if found.made is not None and found.selection.candidate == selection.candidate and selection.unproven is None:
                ours = words_of(session, call.executable.plan, operands)
                one.ranges.append(Range.of(call, operands, ours, found.words, axis, found.made))
