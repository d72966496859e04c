"""Forms: the words of a plan as functions of one size of its product, found from plans of several sizes.

Kernels do not depend on sizes, so plans of the same configuration differ in a few words: grids, sizes, strides, bytes of scratch
memory. Each follows one formula, ``Form``, with constants that are solved for. Nothing here knows what a word means.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]

NO_LIMIT = 2**63 - 1
SIDES = np.arange(1, 1025)
"""Divisors of a size alone: sides of tiles, rows that a cluster splits, depths of a part of K."""
ROUNDED = (1, 64, 128, 256, 512)
"""Divisors of a multiple of a size: threads of a block, and what scratch memory is rounded up to."""
DRAWN = 4
"""Random sizes that forms are found from."""
MOST = 32
"""Plans that are made at most to tell possible forms apart."""


class Form(NamedTuple):
    """A word of a plan, or a column of words: min(limit, base + step · ⌈times · size / divisor⌉)."""

    word: Words | int
    base: Words | int
    step: Words | int
    times: Words | int
    divisor: Words | int
    limit: Words | int

    def at(self, sizes: Words | int) -> Words:
        """Return the word for each size."""
        return np.minimum(self.limit, self.base + self.step * -(-self.times * sizes // self.divisor))


class Fitted(NamedTuple):
    """A plan for all sizes from ``first`` to ``last``.

    ``words`` are the same for all sizes, except those that ``forms`` has, in columns, as functions of the size.
    """

    first: int
    last: int
    words: Words
    forms: Form

    def at(self, size: int) -> Words:
        """Return the words of the plan of a size."""
        made = self.words.copy()
        made[self.forms.word] = self.forms.at(size)
        return made


def fitted(plan: Callable[[int], Words | None], first: int, last: int, drawn: random.Random) -> Fitted | None:
    """Return the plan for all sizes of a range; None if a word follows no form, or a size has no plan.

    Plans are made at sizes where the remaining forms differ, until all of them agree at every size. Then the plan of every size is
    compared with what the forms say: a word may follow another formula, which differs from theirs at a few sizes alone.

    Parameters
    ----------
    plan : function that returns the words of a size's plan; None if there is none
    drawn : draws sizes to begin with
    """
    every, known = np.arange(first, last + 1), dict[int, Words]()
    wanted = {first, last, (first + last) // 2, *drawn.choices(range(first, last + 1), k=DRAWN)}
    found: list[Words] = []
    while wanted and len(known) < MOST:
        for size in wanted:
            if (words := plan(size)) is None or len(words) != len(next(iter(known.values()), words)):
                return None
            known[size] = words
        sizes = np.array(sorted(known))
        table = np.array([known[size] for size in sizes.tolist()])
        found, wanted = [], set()
        for word in np.flatnonzero((table != table[0]).any(axis=0)).tolist():
            if not len(forms := possible(word, sizes, table[:, word])):
                return None
            values = Form(*forms.T[:, :, None]).at(every)
            differ = (values != values[0]).sum(axis=0)
            if differ.any():
                half = np.abs(2 * differ - len(forms)) + len(forms) * (differ == 0)
                wanted = {int(every[np.argmin(half)])}  # it tells half of them from the others
                break
            found.append(forms[0])
    if wanted:
        return None
    made = Fitted(first, last, table[0], Form(*np.array(found, np.int64).reshape(-1, len(Form._fields)).T.copy()))
    return made if all((words := plan(n)) is not None and np.array_equal(words, made.at(n)) for n in every.tolist()) else None


def possible(word: int, sizes: Words, values: Words) -> Words:
    """Return forms that have these values at these sizes, which are sorted: rows of the numbers of ``Form``."""
    found = [np.empty((0, len(Form._fields)), np.int64)]
    for limit in dict.fromkeys((NO_LIMIT, int(values.max()))):
        below = values < limit
        n, v = sizes[below], values[below]
        if len(n) < 2 or not (step := int(np.gcd.reduce(np.diff(v)))) or v[0] == v[-1]:
            continue
        rises, wide = (v[-1] - v[0]) // step, n[-1] - n[0]
        factors = [np.ones_like(SIDES)]
        for divisor in ROUNDED:  # the factors with which the last value is as far from the first
            factors.append(np.arange(max(1, divisor * (rises - 1) // wide), divisor * (rises + 1) // wide + 2))
        times = np.concatenate(factors)
        divisors = np.concatenate((SIDES, np.repeat(ROUNDED, [len(some) for some in factors[1:]])))
        steps = step * -(-times[:, None] * sizes // divisors[:, None])
        base = values[0] - steps[:, 0]
        fits = (np.minimum(limit, base[:, None] + steps) == values).all(axis=1)
        same = np.full((3, fits.sum()), [[word], [step], [limit]])
        found.append(np.array((same[0], base[fits], same[1], times[fits], divisors[fits], same[2])).T)
    return np.concatenate(found)
