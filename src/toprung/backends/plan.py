"""Plans: the launches of a product as plain data, complete but for addresses, α, β and the queue.

A family describes its launches once; ``Session.launcher`` puts them into queues. Nothing of a plan changes from run to run, so that
threads share it, and what launches it needs to know no family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

A, B, C, ADDEND, WORKSPACE, PACKED, FLAGS = range(7)
"""Memory that a run is given, by its slot: the operands, D of an epilogue, scratch memory, a prepacked B, and words that are 0.

A launch finds the words of FLAGS 0 and leaves them so."""

SMALLEST = 2.0**-150
"""An α no larger than this is 0 in float32."""


class Handle(NamedTuple):
    """Argument of 8 bytes: the memory of a slot, as the backend names it. On CUDA it begins at the slot's first element."""

    slot: int


class First(NamedTuple):
    """Argument of 8 bytes: the index of a slot's first element behind its ``Handle``, and ``plus`` elements."""

    slot: int
    plus: int = 0


class Address(NamedTuple):
    """Argument of 8 bytes, on CUDA alone: the address of a slot's first element, and ``plus`` bytes."""

    slot: int
    plus: int = 0


class Map(NamedTuple):
    """Argument of 128 bytes, on CUDA alone: a tensor map of a row-major matrix.

    Attributes
    ----------
    plus : bytes from the slot's first element to the matrix
    stride : bytes from row to row
    box : rows and columns that the TMA fetches at a time; those of fp16 have 128 bytes at most, swizzled by 128 bytes
    """

    slot: int
    plus: int
    rows: int
    cols: int
    stride: int
    box: tuple[int, int]
    dtype: Literal["fp16", "fp32"]


class Scalar(NamedTuple):
    """Argument of 4 bytes: a number of the run."""

    number: Literal[0, 1, 2]


ALPHA, BETA, MULTIPLIES = Scalar(0), Scalar(1), Scalar(2)
"""α, β, and 1 if α is not 0, else 0, as float32."""


class Struct(NamedTuple):
    """Argument of any size, on CUDA alone: words of 8 bytes, into which the addresses of a group's operands are written.

    Attributes
    ----------
    places : indices of the words that are addresses
    operands : number of the operand of each, among those that a run is given
    plus : bytes from each operand to the address
    """

    content: NDArray[np.int64]
    places: NDArray[np.int64]
    operands: NDArray[np.int64]
    plus: NDArray[np.int64]

    def fill(self, words: NDArray[np.int64], operands: NDArray[np.int64]) -> None:
        """Write the addresses of a run into a copy of ``content``."""
        words[self.places] = operands.ravel()[self.operands] + self.plus


Argument: TypeAlias = "Handle | First | Address | Map | Scalar | Struct | Any"
"""An argument that changes from run to run; or one that does not, a NumPy scalar or a ``Buffer``."""


class Library(NamedTuple):
    """Kernel of another library, on CUDA: ``make`` returns, for one thread, a ``Run`` that launches it.

    The arguments of its launch are the addresses of A, B and C.
    """

    make: Callable[[], Run]


When = Literal["", "alpha", "beta", "no beta"]
"""Condition of a launch: always, or where α is not 0, β is not 0, or β is 0."""


class KernelLaunch(NamedTuple):
    """One launch.

    Attributes
    ----------
    name : its part of the product: "split", "multiply", …
    groups, local : work-groups, and work-items of each, in up to three dimensions
    when : condition under which it is made
    overlaps : True if it may begin before the previous one has ended, where its kernel waits for that
    """

    name: str
    kernel: Any
    groups: Sequence[int]
    local: Sequence[int]
    arguments: Sequence[Argument]
    when: When = ""
    overlaps: bool = True


class Plan(NamedTuple):
    """The launches of a product.

    Attributes
    ----------
    scales : launches in place of ``launches`` where α is 0 in float32; None if those see to that
    workspace_bytes, flags_bytes : scratch memory, and the words of FLAGS
    sizes : bytes of an element of A and of B
    kept : objects that must live as long as the plan
    words : words, as C++ reads them, of a plan for another size; numbers in ``launches`` are then not this plan's. Else None
    """

    launches: Sequence[KernelLaunch]
    scales: Sequence[KernelLaunch] | None = None
    workspace_bytes: int = 0
    flags_bytes: int = 0
    sizes: tuple[int, int] = (4, 4)
    kept: tuple[Any, ...] = ()
    words: bytes | None = None

    @property
    def lent_bytes(self) -> int:
        """Bytes that a caller lends for a run: the scratch memory, and the flags behind it, for runs that are captured."""
        return whole(self.workspace_bytes) + self.flags_bytes if self.flags_bytes else self.workspace_bytes

    def due(self, alpha: float, beta: float) -> list[KernelLaunch]:
        """Return the launches of a run."""
        if self.scales is not None and -SMALLEST <= alpha <= SMALLEST:
            return list(self.scales)
        return [launch for launch in self.launches if is_due(launch.when, alpha, beta)]

    def only(self, launch: KernelLaunch) -> Plan:
        """Return the plan with one of its launches alone, to be timed."""
        return self._replace(launches=[launch], scales=None)


def is_due(when: When, alpha: float, beta: float) -> bool:
    """Return True if a run makes a launch with this condition."""
    return not when or (alpha != 0.0 if when == "alpha" else (beta != 0.0) == (when == "beta"))


def whole(nbytes: int) -> int:
    """Return so many bytes, rounded up to 256: what begins behind them is aligned for every access."""
    return -(-nbytes // 256) * 256


def moved(
    launch: KernelLaunch, places: Mapping[int, tuple[int, int]], sizes: tuple[int, int] = (4, 4),
    numbers: Mapping[Scalar, float] = MappingProxyType({}),
) -> KernelLaunch:  # fmt: skip
    """Return a launch with A, B or C elsewhere, and with some scalars fixed.

    Parameters
    ----------
    places : the slot in place of one of these, and the elements from its first one to that of the operand
    sizes : bytes of an element of A and of B
    numbers : scalars that no longer change from run to run
    """

    def instead(argument: Argument) -> Argument:
        if isinstance(argument, Scalar) and argument in numbers:
            return np.float32(numbers[argument])
        if isinstance(argument, Handle | First | Address | Map) and argument.slot in places:
            slot, elements = places[argument.slot]
            if isinstance(argument, Handle):
                return Handle(slot)
            unit = 1 if isinstance(argument, First) else (*sizes, 4)[argument.slot]
            return argument._replace(slot=slot, plus=argument.plus + unit * elements)
        return argument

    return launch._replace(arguments=tuple(map(instead, launch.arguments)))


def pieces(parts: Iterable[tuple[Plan, int, int]]) -> Plan:
    """Return the plan of a sum of products: plans one after the other, each with its first elements of A and of B.

    All but the first add to what C has by then: their β is 1.
    """
    launches, plans = list[KernelLaunch](), list[Plan]()
    for number, (plan, on_a, on_b) in enumerate(parts):
        plans.append(plan)
        for launch in plan.launches:
            if number and launch.when == "no beta":
                continue
            when: When = "" if number and launch.when == "beta" else launch.when
            made = moved(launch, {A: (A, on_a), B: (B, on_b)}, plan.sizes, {BETA: 1.0} if number else {})
            launches.append(made._replace(when=when))
    return plans[0]._replace(
        launches=launches,
        workspace_bytes=max(plan.workspace_bytes for plan in plans),
        flags_bytes=max(plan.flags_bytes for plan in plans),
        kept=tuple(kept for plan in plans for kept in plan.kept),
    )


Run = Callable[..., None]
"""``run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, workspace, addend, packed, operands)``; for one thread.

Handles, with offsets in elements. ``workspace``: handle of ``lent_bytes`` of scratch memory of the caller's, on 256 bytes, that
stays until the queue has passed; None: the session's own for the queue. ``addend``, ``packed``: addresses, where there are any.
``operands``: int64 addresses of a group's, contiguous."""
