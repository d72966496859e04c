"""Groups: products of unequal shapes in one CUDA launch, whose parameters have the addresses and sizes of all of them.

A family for groups says which products share a launch and which kernel computes them; the rest is here. Its kernel takes a
``Group`` as ``GroupKernel.type`` has it: as many blocks as run at once have tiles in turns, products with the largest K first.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from toprung.backends import nvrtc
from toprung.backends.base import Session, Source
from toprung.backends.plan import KernelLaunch
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import GroupLaunches, Member
from toprung.kernels.build import guard, kernel_of
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


def matrices(product: int, member: Member) -> list[Matrix]:
    """Return the matrices of a product with a number in the group."""
    return [Matrix(*member, product, number) for number in range(member.desc.batch)]


class Block(NamedTuple):
    """Block of a kernel for groups: rows and columns of C that it has at a time, its threads, and how many an SM runs at once."""

    rows: int
    cols: int
    threads: int
    resident: int


class GroupForm(ABC):
    """All that a kernel for groups is compiled from but capacity and epilogue: hashable, and named in receipts by ``str``.

    Attributes
    ----------
    counts : True if the kernel's first argument is a counter of the pieces of C that it computes again in plain fp32
    overlaps : True if the kernel may begin before the previous one in its stream has ended, for which it waits
    """

    counts: bool = False
    overlaps: bool = False

    @property
    @abstractmethod
    def block(self) -> Block:
        """Block of the kernel."""

    @abstractmethod
    def source(self, **macros: int) -> Source:
        """Return the kernel's source; ``macros`` say the capacity and the epilogue."""


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


class GroupKernel:
    """One kernel for groups, loaded for a session: it can be launched by any thread."""

    def __init__(self, session: Session, form: GroupForm, capacity: int, epilogue: Epilogue | None) -> None:
        self.type = np.dtype(
            [("count", "u4"), ("tiles", "u4"), ("ends", "u4", (capacity,)), ("of", member_type(epilogue is not None), (capacity,))],
            align=True,
        )
        self.form, self._session = form, session
        self._kernel = kernel_of(session, form.source(**epilogues.defines(epilogue), GROUPED=capacity))
        self.counter = Counter(session) if form.counts else None
        self._mine = threading.local()

    def launch(self, queue: Any, group: NDArray[Any]) -> None:
        """Put a launch into a queue; the driver copies its parameters before it returns."""
        session: Any = self._session
        try:
            launch = self._mine.launch
        except AttributeError:
            # as many blocks as run at once: those without a tile end at once
            block = self.form.block
            blocks, nothing = block.resident * session.device.compute_units, np.zeros((), self.type)[()]
            counter = () if self.counter is None else (self.counter.buffer,)
            launch = self._mine.launch = session.bound(
                KernelLaunch("group", self._kernel, (blocks,), (block.threads,), (*counter, nothing), overlaps=self.form.overlaps)
            )
        launch.kept[-1][...] = np.frombuffer(group.tobytes(), launch.kept[-1].dtype).reshape(launch.kept[-1].shape)
        with session.current():
            launch.start(session, int(session.queue if queue is None else queue))


_kernels: WeakKeyDictionary[Session, dict[Hashable, GroupKernel]] = WeakKeyDictionary()


class PackedGroup(GroupLaunches):
    """The launches of a group: one for each class of products, and for each so many products as parameters have room for.

    Products follow each other by K, largest first. Blocks take tiles in turns, so that what the first of them has more to
    do than the last is, over all turns, no more than the longest tile: each turn begins with no longer a tile than the last ended.

    Parameters
    ----------
    name : name of the family
    classes : traits that products must share to share a launch, with the products that have them
    form : function that returns the kernel for products with such traits
    """

    def __init__(
        self,
        session: Session,
        name: str,
        members: Sequence[Member],
        classes: Iterable[tuple[Any, list[Matrix]]],
        form: Callable[[Any, Sequence[Matrix]], GroupForm],
    ) -> None:
        self._launches: list[tuple[GroupKernel, NDArray[Any], str, NDArray[Any], NDArray[Any]]] = []
        # an epilogue that all products can have; None if none has any
        (activation,) = {m.epilogue.activation if m.epilogue else "" for m in members}
        any_fused = bool(activation) or any(m.epilogue is not None and m.epilogue.addend for m in members)
        fused = Epilogue(True, activation=activation) if any_fused else None
        largest = capacities(fused is not None)[-1]
        for traits, mine in classes:
            mine.sort(key=lambda one: -one.desc.K)
            for first in range(0, len(mine), largest):
                some = mine[first : first + largest]
                self._add(session, form(traits, some), some, fused)
        self.kernels = tuple(dict.fromkeys(f"{name} {kernel.form}" for kernel, *_ in self._launches))
        self.launches = len(self._launches)

    def _add(self, session: Session, form: GroupForm, members: list[Matrix], epilogue: Epilogue | None) -> None:
        count, block = len(members), form.block
        capacity = next(n for n in capacities(epilogue is not None) if n >= count)
        key = form, capacity, None if epilogue is None else epilogue.activation
        with guard:
            kept = _kernels.setdefault(session, {})
            if (kernel := kept.get(key)) is None:
                kernel = kept[key] = GroupKernel(session, form, capacity, epilogue)
        group = np.zeros((), kernel.type)
        of = group["of"][:count]
        for name in ("M", "N", "K", "lda", "ldb", "ldc"):
            of[name] = [getattr(m.desc, name) for m in members]
        if epilogue is not None:
            for name in ("down", "on"):
                of[name] = [getattr(m.epilogue, name, 0) for m in members]
        down = -(-of["M"] // block.rows)
        of["tiles_m"] = down
        of["inverse"] = (0xFFFFFFFF // down.astype(np.uint64) + 1) & 0xFFFFFFFF
        ends = np.cumsum(down.astype(np.int64) * -(-of["N"] // block.cols))  # tiles of each product and of all before it
        group["count"], group["tiles"], group["ends"][:count] = count, ends[-1], ends
        # bytes from the addresses of a product's operands to those of its matrix
        steps = [(m.desc.stride_a, m.desc.stride_b, m.desc.stride_c, m.epilogue.stride if m.epilogue else 0) for m in members]
        offsets = 4 * np.array([m.number for m in members], np.int64) * np.array(steps, np.int64).T
        names = "abc" if epilogue is None else "abcd"
        self._launches.append((kernel, group, names, np.array([m.product for m in members]), offsets))

    def start(self, queue: Any, addresses: NDArray[np.int64]) -> None:
        for kernel, laid, names, products, offsets in self._launches:
            group = laid.copy()  # another thread may have other addresses
            of = group["of"][: len(products)]
            at = addresses[:, products] + offsets
            for name, row in zip(names, at, strict=False):
                of[name] = row
            kernel.launch(queue, group)

    @property
    def counters(self) -> tuple[Callable[[], int], ...]:
        # functions that return how many pieces of C were computed again by kernels of these launches; they wait for the device
        found = dict.fromkeys(kernel.counter for kernel, *_ in self._launches if kernel.counter is not None)
        return tuple(counter.read for counter in found)
