"""Ranges of sizes for the bridge: products that differ from known ones in one size enter no Python.

A program whose batch sizes, sequence lengths or graphs change meets a new kind of product in each step. After a few that differ in
one size, ``blas.ranges`` finds the sizes for which one configuration is right. The bridge makes the plans of these sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from toprung.backends.forms import Words
from toprung.blas.product import OnDevice
from toprung.blas.ranges import Around, Operands, words_of
from toprung.torch import bridge


class Range(NamedTuple):
    """Sizes along an axis whose products share a configuration, are PyTorch's, or are decided one by one.

    Attributes
    ----------
    entry : a product that differs from them in the size alone
    axis : the size that differs, one of ``AXES``
    first, last : least and greatest size
    call : call that computes the product; None where PyTorch's own kernel does
    why : reason why PyTorch's own runs
    native : the range in the bridge's memory
    """

    entry: Any
    axis: int
    first: int
    last: int
    call: OnDevice | None
    why: str
    native: bridge.Range

    def at(self, size: int) -> OnDevice:
        """Return the call that computes the product of a size in Python: the same launches as the bridge's.

        Raises as ``Executable`` does.
        """
        assert self.call is not None
        operands: Operands = self.entry.operands
        (selection,) = self.call.executable.selections.values()
        return operands.at(self.axis, size).call(self.call.executable.session, bool(self.native.fused), selection)


@dataclass(eq=False)
class Kin:
    """Products that differ in the size along an axis alone.

    Attributes
    ----------
    key : their key in the bridge
    left : calls left to PyTorch before a range was looked for
    ranges : the ranges found; the first that contains a size decides it
    calls : products of the ranges, each with the words of its plan in this process and in the worker
    """

    axis: int
    key: bridge.Key
    left: int = 0
    ranges: list[Range] = field(default_factory=list)
    calls: list[tuple[OnDevice, Words, Words]] = field(default_factory=list)

    def find(self, size: int) -> Range | None:
        """Return the range of a size; None if there is none."""
        return next((one for one in self.ranges if one.first <= size <= one.last), None)

    def around(self, entry: Any, operands: Operands, session: Any = None, found: Around | None = None) -> Range:
        """Return the range of a product; its size alone, decided in Python, if its plan serves no other."""
        size = operands.size(self.axis)
        if found is None or found.made is None or found.selection.unproven is not None:
            native = bridge.Range(first=size, last=size, verdict=bridge.UNKNOWN)
            return Range(entry, self.axis, size, size, None, "", native)
        fitted = found.made
        call = None if found.why else self._call(operands, session, found)
        if call is not None:
            # words that differ between this process's plan and the worker's are addresses
            _, ours, planned = call
            fitted = fitted._replace(words=np.where(ours != planned, ours, fitted.words))
        native = bridge.Range.of(fitted, bridge.LEFT if found.why else bridge.TAKEN, found.fused, entry.op)
        return Range(entry, self.axis, fitted.first, fitted.last, call and call[0], found.why, native)

    def _call(self, operands: Operands, session: Any, found: Around) -> tuple[OnDevice, Words, Words]:
        """Return a product with the kernels that were found, and its plan's words here and in the worker."""
        for one in self.calls:
            call, ours, planned = one
            (known,) = call.executable.selections.values()
            same = known.candidate == found.selection.candidate and len(planned) == len(found.words)
            if same and np.array_equal(planned[ours != planned], found.words[ours != planned]):
                return one
        call = operands.call(session, found.fused, found.selection)
        one = call, words_of(session, call.executable.plan, operands), found.words
        self.calls.append(one)
        return one
