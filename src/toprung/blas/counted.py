"""Products that another library asked for: what was decided for each kind under a set of settings, and how often it was called."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from toprung import forks
from toprung.blas.product import Call
from toprung.dispatch import autotune
from toprung.dispatch.recent import Recent

WIDTH = 78
"""Characters in a line of a printed report."""

LEGEND = "layout of A and B: N by rows, T by columns, S with gaps; the rest counts calls"
"""Last line of a printed report with rows."""


class CountedEntry:
    """A kind of product: shapes, strides, alignment, place.

    Attributes
    ----------
    problem, layout : shapes as readable text; how A and B lie, as ``NT``
    call : what computes it; None where the other library's own runs
    why : reason why the other library's own runs
    taken, left : calls that toprung's kernels ran, and the other library's
    """

    __slots__ = ("call", "layout", "left", "problem", "taken", "why")

    def __init__(self, problem: str, layout: str) -> None:
        self.problem, self.layout = problem, layout
        self.call: Call | None = None
        self.why, self.taken, self.left = "", 0, 0

    @property
    def kernel(self) -> str:
        """Kernels that run it, with their tiles; empty if the other library's own does."""
        left = self.call.receipt() if self.call is not None else None
        return ", ".join(left.kernels) if left is not None else ""

    @property
    def kind(self) -> tuple[str, ...]:
        """Texts that a report lists it by: entries that agree in them are counted together once they are retired."""
        return self.problem, self.layout, self.kernel

    def absorb(self, other: Any) -> None:
        """Add the counts of a later entry of the same kind."""
        self.taken, self.left, self.why = self.taken + other.taken, self.left + other.left, other.why


E = TypeVar("E", bound=CountedEntry)
S = TypeVar("S")


class _HasLeast(Protocol):
    @property
    def min_flops(self) -> float: ...


class CountedProducts(Generic[E]):
    """Entries under one set of settings.

    Attributes
    ----------
    least : multiply-adds of the smallest product that is taken
    entries : by what decides a product: shapes, strides, alignments, devices
    small : calls with fewer operations than ``min_flops``
    refused : calls that the other library's own ran for what the program asked for, or as the first of their kind, by the reason
    past : entries that were retired, for their counts

    Parameters
    ----------
    kept : number of entries, the last that were asked for, that are kept
    """

    def __init__(self, settings: _HasLeast, kept: int) -> None:
        self.least = settings.min_flops / 2
        self.entries: Recent[E] = Recent(kept, drop=self.drop)
        self.small = 0
        self.refused: dict[str, int] = {}
        self.past: dict[Hashable, E] = {}

    def retire(self) -> None:
        """Forget what was selected, and keep the counts."""
        self.drop(self.entries.every())
        self.entries.clear()

    def drop(self, entries: list[E]) -> None:
        """Keep the counts of entries that are forgotten: all of them, or those that were not asked for lately."""
        for entry in entries:
            kept = self.past.setdefault(entry.kind, entry)
            if kept is not entry:
                kept.absorb(entry)

    def counted(self) -> list[E]:
        """Return all entries, those that were retired first."""
        return [*self.past.values(), *self.entries.every()]

    def refuse(self, reason: str) -> None:
        """Count a call that is the other library's because of what the program asked for."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def forget(self) -> None:
        """Forget what was selected, and all counts."""
        self.entries.clear()
        self.past.clear()
        self.small, self.refused = 0, {}


P = TypeVar("P", bound=CountedProducts[Any])


class BySettings(Generic[S, P]):
    """Products of all settings that have been active, made when they are first asked for.

    They are retired when the tuned store changes, and forgotten in a forked child, which may use no executable of its parent.
    """

    def __init__(self, make: Callable[[S], P]) -> None:
        self._make = make
        self._all: dict[S, P] = {}
        autotune.HERE.forget.append(self._retire)
        forks.in_child(self._of_parent)

    def of(self, settings: S) -> P:
        """Return the products of settings, the same each time."""
        found = self._all.get(settings)
        if found is None:
            found = self._all.setdefault(settings, self._make(settings))
        return found

    def every(self) -> list[P]:
        """Return the products of all settings that have been active."""
        return list(self._all.values())

    def forget(self) -> None:
        """Forget what was selected: it is selected anew, and counted from 0."""
        for products in self.every():
            products.forget()

    def _of_parent(self) -> object:
        theirs = [products.counted() for products in self.every()]
        self.forget()
        return theirs

    def _retire(self) -> None:
        for products in self.every():
            products.retire()


class _Counts(Protocol):
    @property
    def taken(self) -> int: ...

    @property
    def left(self) -> int: ...


R = TypeVar("R", bound=_Counts)


@dataclass(frozen=True)
class CountedReport(Generic[R]):
    """Counts of products since ``enable``, by kind; ``print`` it, or take ``to_json()``.

    Attributes
    ----------
    rows : kinds of products, the most frequent first
    small : calls with fewer operations than ``min_flops``
    refused : calls that the other library's own ran for what the program asked for, or as the first of their kind, by the reason
    idle : reason of this machine's why no product was taken; empty where one was
    """

    rows: tuple[R, ...]
    small: int
    refused: dict[str, int]
    idle: str = ""

    @property
    def taken(self) -> int:
        """Calls that ran on toprung's kernels."""
        return sum(row.taken for row in self.rows)

    @property
    def left(self) -> int:
        """Calls that the other library's own ran, those too small not counted."""
        return sum(row.left for row in self.rows) + sum(self.refused.values())

    def left_to(self, library: str) -> list[str]:
        """Return the lines of a printed report about this machine and what the program asked for."""
        lines = indented(self.idle)
        for reason, count in self.refused.items():
            lines += [f"{count} call{'s' * (count > 1)} left to {library}:", *indented(reason)]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "taken": self.taken}


def not_by_kind(products: Iterable[CountedProducts[Any]]) -> tuple[int, dict[str, int]]:
    """Return the number of small calls, and of those that were refused by the reason, of all settings together."""
    small, refused = 0, dict[str, int]()
    for one in products:
        small += one.small
        for reason, count in one.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    return small, refused


def indented(text: str) -> list[str]:
    """Return a text as indented lines of a printed report."""
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
