"""Groups: products of unequal shapes in one launch, whose parameters have the addresses and sizes of all of them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from toprung.backends import nvrtc
from toprung.backends.base import Session
from toprung.backends.overlap import Overlapping
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import GroupLaunches, Member
from toprung.kernels.build import guard, kernel_of
from toprung.kernels.hopper import Counter, address
from toprung.kernels.hopper_inflight.config import InflightConfig, aligned, product_source
from toprung.kernels.hopper_inflight.cost import Sizes, group_config

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


class Layout(NamedTuple):
    """Traits that all products of a launch share: transposes, and floats to which operands are aligned."""

    trans_a: bool
    trans_b: bool
    align_a: int
    align_b: int


@functools.cache
def member_type(fused: bool) -> np.dtype[Any]:
    """Return the layout of ``Member`` in ``inflight.cu``, with an epilogue or without."""
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

    def __init__(self, session: Session, config: InflightConfig, layout: Layout, capacity: int, epilogue: Epilogue | None) -> None:
        self.type = np.dtype(
            [("count", "u4"), ("tiles", "u4"), ("ends", "u4", (capacity,)), ("of", member_type(epilogue is not None), (capacity,))],
            align=True,
        )
        self.config, self._session = config, session
        macros = {**epilogues.defines(epilogue), "GROUPED": capacity}
        trans_a, trans_b, align_a, align_b = layout
        self._kernel = kernel_of(session, product_source(config, trans_a, trans_b, align_a, align_b, **macros))
        self.counter = Counter(session)
        self._mine = threading.local()

    def launch(self, queue: Any, group: NDArray[Any]) -> None:
        """Put a launch into a queue; the driver copies its parameters before it returns."""
        try:
            launch = self._mine.launch
        except AttributeError:
            # as many blocks as run at once: those without a tile end at once
            blocks = self.config.resident * self._session.device.compute_units
            nothing: Any = np.zeros((), self.type)[()]
            launch = self._mine.launch = Overlapping(self._session, self._kernel, blocks, self.config.threads, "P", (nothing,))
        launch.replace(0, group)
        launch(queue, address(self.counter.buffer))


_kernels: WeakKeyDictionary[Session, dict[Hashable, GroupKernel]] = WeakKeyDictionary()


class InflightGroup(GroupLaunches):
    """The launches of a group: one for each pair of transposes, and for each so many products as parameters have room for.

    Products follow each other by K, largest first. Blocks take tiles in turns, so that what the first of them has more to
    do than the last is, over all turns, no more than the longest tile: each turn begins with no longer a tile than the last ended.
    """

    def __init__(self, session: Session, members: Sequence[Member]) -> None:
        self._launches: list[tuple[GroupKernel, NDArray[Any], str, NDArray[Any], NDArray[Any]]] = []
        fused = _epilogue(members)
        largest = capacities(fused is not None)[-1]
        for layout, mine in classes(members, session.device.compute_units):
            mine.sort(key=lambda one: -one.desc.K)
            for first in range(0, len(mine), largest):
                self._add(session, layout, mine[first : first + largest], fused)
        self.kernels = tuple(dict.fromkeys(f"hopper_inflight {kernel.config}" for kernel, *_ in self._launches))
        self.launches = len(self._launches)

    def _add(self, session: Session, layout: Layout, members: list[Matrix], epilogue: Epilogue | None) -> None:
        config = group_config(Sizes.of([m.desc for m in members]), layout.align_a, layout.align_b, session.device.compute_units)
        count = len(members)
        capacity = next(n for n in capacities(epilogue is not None) if n >= count)
        key = config, layout, capacity, None if epilogue is None else epilogue.activation
        with guard:
            kept = _kernels.setdefault(session, {})
            if (kernel := kept.get(key)) is None:
                kernel = kept[key] = GroupKernel(session, config, layout, capacity, epilogue)
        group = np.zeros((), kernel.type)
        of = group["of"][:count]
        for name in ("M", "N", "K", "lda", "ldb", "ldc"):
            of[name] = [getattr(m.desc, name) for m in members]
        if epilogue is not None:
            for name in ("down", "on"):
                of[name] = [getattr(m.epilogue, name, 0) for m in members]
        down = -(-of["M"] // config.BM)
        of["tiles_m"] = down
        of["inverse"] = (0xFFFFFFFF // down.astype(np.uint64) + 1) & 0xFFFFFFFF
        ends = np.cumsum(down.astype(np.int64) * -(-of["N"] // config.BN))  # tiles of each product and of all before it
        group["count"], group["tiles"], group["ends"][:count] = count, ends[-1], ends
        # bytes from the addresses of a product's operands to those of its matrix
        steps = [(m.desc.stride_a, m.desc.stride_b, m.desc.stride_c, m.epilogue.stride if m.epilogue else 0) for m in members]
        offsets = 4 * np.array([m.number for m in members], np.int64) * np.array(steps, np.int64).T
        names = "abc" if epilogue is None else "abcd"
        self._launches.append((kernel, group, names, np.array([m.product for m in members]), offsets))

    def start(self, queue: Any, addresses: NDArray[np.int64]) -> None:
        """Put the launches into a queue."""
        for kernel, laid, names, products, offsets in self._launches:
            group = laid.copy()  # another thread may have other addresses
            of = group["of"][: len(products)]
            at = addresses[:, products] + offsets
            for name, row in zip(names, at, strict=False):
                of[name] = row
            kernel.launch(queue, group)

    @property
    def counters(self) -> tuple[Any, ...]:
        """Functions that return how many pieces of C were computed again by kernels of these launches; they wait for the device."""
        return tuple(kernel.counter.read for kernel in dict.fromkeys(kernel for kernel, *_ in self._launches))


def _epilogue(members: Sequence[Member]) -> Epilogue | None:
    """Return an epilogue that all products can have; None if none has any."""
    (activation,) = {m.epilogue.activation if m.epilogue else "" for m in members}
    fused = bool(activation) or any(m.epilogue is not None and m.epilogue.addend for m in members)
    return Epilogue(True, activation=activation) if fused else None


def classes(members: Sequence[Member], units: int) -> Iterator[tuple[Layout, list[Matrix]]]:
    """Yield the products of a launch, batches matrix by matrix, with what they have in common.

    Transposes and alignments are compiled in. Products that are aligned better than others of their transposes share a launch
    with them, copied in small pieces as those must be, if that is predicted to take no longer than a launch for each alignment.
    """
    by_trans: dict[tuple[bool, bool], dict[tuple[int, int], list[Matrix]]] = {}
    for product, (desc, epilogue) in enumerate(members):
        alike = by_trans.setdefault((desc.trans_a, desc.trans_b), {}).setdefault(aligned(desc), [])
        alike += [Matrix(desc, epilogue, product, number) for number in range(desc.batch)]
    for trans, by_align in by_trans.items():
        least = min(a for a, _ in by_align), min(b for _, b in by_align)
        every = [m for alike in by_align.values() for m in alike]
        if len(by_align) > 1:
            apart = sum(group_seconds(alike, align, units) for align, alike in by_align.items())
            if apart < group_seconds(every, least, units):
                yield from ((Layout(*trans, *align), alike) for align, alike in by_align.items())
                continue
        yield Layout(*trans, *least), every


def group_seconds(members: Sequence[Matrix], align: tuple[int, int], units: int) -> float:
    """Return the predicted seconds of a launch, in the best block."""
    sizes = Sizes.of([m.desc for m in members])
    return sizes.seconds(group_config(sizes, *align, units), *align, units)
