"""Ranges of sizes for the bridge: products that differ from known ones in one size enter no Python.

A program whose batch sizes, sequence lengths or graphs change meets a new kind of product in each step. After a few that differ in
one size, ``blas.ranges`` finds the sizes for which one configuration is right. The bridge makes the plans of these sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from toprung.backends.forms import Words
from toprung.blas import background, ranges
from toprung.blas.product import OnDevice
from toprung.blas.ranges import Around, Operands, words_of
from toprung.torch import bridge


class Range(NamedTuple):
    """Sizes whose products share a configuration, are PyTorch's, or are decided one by one.

    Attributes
    ----------
    entry : a product that differs from them in the size alone
    first, last : least and greatest size
    taken : range of calls that compute the products; None if PyTorch's own kernel does
    why : reason why PyTorch's own runs
    native : the range in the bridge's memory
    """

    entry: Any
    first: int
    last: int
    taken: ranges.Range | None
    why: str
    native: bridge.Range


@dataclass(eq=False)
class Kin:
    """Products that differ in the size along an axis, one of ``AXES``, alone.

    Attributes
    ----------
    keys : their keys in the bridge, by what is in them: it tells biases apart by more than a plan has to do with
    left : calls left to PyTorch before a range was looked for
    ranges : the ranges found; the first that contains a size decides it
    calls : products of the ranges, each with its operands, and the words of its plan in this process and in the worker
    forgotten : True if other kins take its place: what is found from then on decides nothing
    """

    axis: int
    keys: dict[bytes, bridge.Key] = field(default_factory=dict)
    left: int = 0
    ranges: list[Range] = field(default_factory=list)
    calls: list[tuple[OnDevice, Operands, Words, Words]] = field(default_factory=list)
    forgotten: bool = False

    def find(self, size: int) -> Range | None:
        """Return the range of a size; None if there is none."""
        return next((one for one in self.ranges if one.first <= size <= one.last), None)

    def around(self, entry: Any, operands: Operands, session: Any = None, found: Around | None = None) -> Range:
        """Return the range of a product; its size alone, decided in Python, if its plan serves no other."""
        size = operands.size(self.axis)
        if found is None or found.made is None or found.selection.unproven is not None:
            native = bridge.Range(first=size, last=size, verdict=bridge.UNKNOWN)
            return Range(entry, size, size, None, "", native)
        made, taken = found.made, None
        if not found.why:
            taken = ranges.Range.of(*self._call(operands, session, found), self.axis, made)
            made = taken.made
        native = bridge.Range.of(made, bridge.LEFT if found.why else bridge.TAKEN, found.fused, entry.op)
        return Range(entry, made.first, made.last, taken, found.why, native)

    def _call(self, operands: Operands, session: Any, found: Around) -> tuple[OnDevice, Operands, Words, Words]:
        """Return a call of the found candidate, its operands, and its plan's words here and in the worker.

        A known call with the same kernels is returned again.
        """
        for one in self.calls:
            call, _, ours, planned = one
            (known,) = call.executable.selections.values()
            same = known.candidate == found.selection.candidate and len(planned) == len(found.words)
            if same and np.array_equal(planned[ours != planned], found.words[ours != planned]):
                return one
        call = operands.call(session, found.fused, found.selection)
        background.breathe()
        one = call, operands, words_of(session, call.executable.plan, operands), found.words
        self.calls.append(one)
        return one
