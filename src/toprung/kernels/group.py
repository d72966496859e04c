"""Groups: products of unequal shapes in one CUDA launch, whose parameters have the addresses and sizes of all of them.

A family for groups says which products share a launch and which kernel computes them; the rest is here. Its kernel takes a
``Group`` as ``group_type`` has it: as many blocks as run at once have tiles in turns, products with the largest K first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from toprung.backends import nvrtc
from toprung.backends.base import Session, Source
from toprung.backends.plan import KernelLaunch, Plan, Struct
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import GroupLaunches, Member
from toprung.kernels.build import kept, kernel_of
from toprung.kernels.hopper import Counter

MOST_MATRICES = 64
"""Matrices of a batch that are taken into a group, one by one; a larger batch keeps the device busy by itself."""
PARAMETER_BYTES = 4096, 32764
"""Bytes that the parameters of a kernel may have: everywhere, and since CUDA 12.1."""
BESIDE = 24
"""Bytes of them that are no product's, with what alignment leaves empty."""


class Matrix(NamedTuple):
    """One matrix of a group: of the product with this number in the group, the one with this number in its batch."""

    desc: GemmDesc
    epilogue: Epilogue | None
    product: int
    number: int


def by_traits(members: Sequence[Member], traits: Callable[[GemmDesc], Any]) -> dict[Any, list[Matrix]]:
    """Return the matrices of a group by traits of their products, in the group's order."""
    found: dict[Any, list[Matrix]] = {}
    for product, member in enumerate(members):
        mine = found.setdefault(traits(member.desc), [])
        mine += [Matrix(*member, product, number) for number in range(member.desc.batch)]
    return found


class GroupForm(NamedTuple):
    """Inputs of compiling a kernel for groups, except capacity and epilogue.

    Attributes
    ----------
    config : the kernel's configuration, which receipts name; it has BM, BN, ``threads``, and ``resident``, blocks per SM
    traits : further compile-time constants
    source : function that returns the kernel's source; its keywords are macros for the capacity and the epilogue
    counts : True if the kernel's first argument is a counter of the pieces of C that it computes again in plain fp32
    """

    config: Any
    traits: Hashable
    source: Callable[..., Source]
    counts: bool = False


@functools.cache
def member_type(fused: bool) -> np.dtype[Any]:
    """Return the layout of ``Member`` in the kernels' sources, with an epilogue or without."""
    added = [("d", "u8"), ("down", "i8"), ("on", "i8")] if fused else []
    sizes = [(name, "i4") for name in ("M", "N", "K", "lda", "ldb", "ldc")]
    return np.dtype([("a", "u8"), ("b", "u8"), ("c", "u8"), *added, *sizes, ("tiles_m", "u4"), ("inverse", "u4")], align=True)


def capacities(fused: bool) -> tuple[int, ...]:
    """Return how many products the parameters have room for, as multiples of 16, smallest first."""
    each = member_type(fused).itemsize + 4
    return tuple((nbytes - BESIDE) // each // 16 * 16 for nbytes in PARAMETER_BYTES[: 2 if has_large_parameters() else 1])


@functools.cache
def has_large_parameters() -> bool:
    """Return True if driver and compiler know of more than 4096 bytes of parameters; smaller launches cost less even then."""
    from cuda.bindings import driver  # not above: every program loads the families, few have a GPU

    status, version = driver.cuDriverGetVersion()
    compiler = tuple(map(int, nvrtc.version().split(".")[:2]))
    return not status and version >= 12010 and compiler >= (12, 1)


def _kernel(session: Session, form: GroupForm, capacity: int, epilogue: Epilogue | None) -> tuple[Any, Counter | None]:
    """Return one kernel for groups, loaded for a session, and its counter, which all its launches share."""
    key = "groups", form.config, form.traits, capacity, None if epilogue is None else epilogue.activation

    def made() -> tuple[Any, Counter | None]:
        source = form.source(**epilogues.defines(epilogue), GROUPED=capacity)
        return kernel_of(session, source), Counter(session) if form.counts else None

    return kept(session, key, made)


@functools.cache
def group_type(capacity: int, fused: bool) -> np.dtype[Any]:
    """Return the layout of ``Group`` in the kernels' sources, with epilogues or without."""
    counts = [(name, "u4") for name in ("count", "tiles")]
    return np.dtype([*counts, ("ends", "u4", (capacity,)), ("of", member_type(fused), (capacity,))], align=True)


def packed(
    session: Session,
    name: str,
    members: Sequence[Member],
    classes: Iterable[tuple[Any, list[Matrix]]],
    form: Callable[[Any, Sequence[Matrix]], GroupForm],
) -> GroupLaunches:
    """Return the launches of a group: one for each class of products, and for each so many products as parameters have room for.

    Products follow each other by K, largest first. Blocks take tiles in turns, so that what the first of them has more to
    do than the last is, over all turns, no more than the longest tile: each turn begins with no longer a tile than the last ended.

    Parameters
    ----------
    name : name of the family
    classes : traits that products must share to share a launch, with the products that have them
    form : function that returns the kernel for products with such traits
    """
    # an epilogue that all products can have; None if none has any
    (activation,) = {m.epilogue.activation if m.epilogue else "" for m in members}
    any_fused = bool(activation) or any(m.epilogue is not None and m.epilogue.addend for m in members)
    fused = Epilogue(True, activation=activation) if any_fused else None
    largest = capacities(fused is not None)[-1]
    launches, forms, counters = list[KernelLaunch](), list[GroupForm](), list[Counter]()
    for traits, mine in classes:
        mine.sort(key=lambda one: -one.desc.K)
        for first in range(0, len(mine), largest):
            some = mine[first : first + largest]
            forms.append(form(traits, some))
            launch, counter = _launch(session, forms[-1], some, fused, len(members))
            launches.append(launch)
            counters += [] if counter is None else [counter]
    kernels, counters = dict.fromkeys(f"{name} {one.config}" for one in forms), list(dict.fromkeys(counters))
    return GroupLaunches(session, Plan(launches, kept=tuple(counters)), kernels, [counter.read for counter in counters])


def _launch(
    session: Session, form: GroupForm, members: list[Matrix], epilogue: Epilogue | None, products: int
) -> tuple[KernelLaunch, Counter | None]:
    """Return the launch of some matrices of a group of so many products, and the counter of its kernel."""
    count, block = len(members), form.config
    capacity = next(n for n in capacities(epilogue is not None) if n >= count)
    layout = group_type(capacity, epilogue is not None)
    content = np.zeros(layout.itemsize // 8, np.int64)
    group = content.view(layout)[0]
    of = group["of"][:count]
    for name in ("M", "N", "K", "lda", "ldb", "ldc"):
        of[name] = [getattr(m.desc, name) for m in members]
    if epilogue is not None:
        for name in ("down", "on"):
            of[name] = [getattr(m.epilogue, name, 0) for m in members]
    down = -(-of["M"] // block.BM)
    of["tiles_m"] = down
    of["inverse"] = (0xFFFFFFFF // down.astype(np.uint64) + 1) & 0xFFFFFFFF
    ends = np.cumsum(down.astype(np.int64) * -(-of["N"] // block.BN))  # running total of tiles
    group["count"], group["tiles"], group["ends"][:count] = count, ends[-1], ends

    # each matrix's words for A, B, C and D, the numbers of its product's, and the bytes from their addresses to the matrix
    steps = [(m.desc.stride_a, m.desc.stride_b, m.desc.stride_c, m.epilogue.stride if m.epilogue else 0) for m in members]
    plus = 4 * np.array([m.number for m in members], np.int64) * np.array(steps, np.int64).T
    rows = np.arange(3 if epilogue is None else 4)[:, None]
    first = layout.itemsize - capacity * of.itemsize
    places = (first + of.itemsize * np.arange(count)) // 8 + rows
    operands = products * rows + np.array([m.product for m in members])
    struct = Struct(content, places.ravel(), operands.ravel(), plus[: len(rows)].ravel())

    # as many blocks as run at once: those without a tile end at once
    kernel, counter = _kernel(session, form, capacity, epilogue)
    blocks = block.resident * session.device.compute_units
    arguments = (struct,) if counter is None else (counter.buffer, struct)
    return KernelLaunch("group", kernel, (blocks,), (block.threads,), arguments), counter
